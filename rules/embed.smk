"""Embeddings: a key for every entry of a method's memory."""


rule embed:
    input:
        unpack(inputs_to_embed),
    output:
        embeddings=paths.embeddings("{scale}", "{env}", "{method}"),
        manifest=paths.manifest(paths.embeddings("{scale}", "{env}", "{method}")),
    log:
        "logs/{scale}/{env}/{method}/embed.log",
    benchmark:
        "logs/{scale}/{env}/{method}/embed.benchmark.jsonl"
    priority: 50
    conda:
        "../envs/base.yaml"
    threads: job_threads
    resources:
        # Histories as they are, on the device; one batch of windows; the keys (160 k × 512 numbers).
        mem_mb=megabytes(small=1500, paper=6000),
        runtime=minutes(60, 240),
        gpu=play_gpus,
    params:
        settings=params_of("memory_settings", "scale", "env", "method"),
        code=memory_code_of("embed"),
    shell:
        "recollect embed --scale {wildcards.scale} --env {wildcards.env} --method {wildcards.method}"
        " --device auto --threads {threads} > {log} 2>&1"
