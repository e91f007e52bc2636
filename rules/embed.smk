"""Embeddings: a vector for every image of the histories, and a key for every entry of a method's memory."""


rule embed_images:
    input:
        unpack(inputs_to_embed_images),
    output:
        histories=paths.encoded_histories("{scale}", "{env}"),
        manifest=paths.manifest(paths.encoded_histories("{scale}", "{env}")),
    log:
        "logs/{scale}/{env}/embed_images.log",
    benchmark:
        "logs/{scale}/{env}/embed_images.benchmark.jsonl"
    priority: 65
    conda:
        packages_to_play
    threads: job_threads
    resources:
        # One part of the images and its vectors; all else is mapped from disk.
        mem_mb=megabytes(small=1500, paper=6000),
        runtime=minutes(120, 480),
        gpu=encode_gpus,
    params:
        settings=params_of("image_settings", "scale", "env"),
        code=params_of("image_code", "scale", "env"),
    shell:
        "recollect embed-images --scale {wildcards.scale} --env {wildcards.env}"
        " --device auto --threads {threads} > {log} 2>&1"


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
        packages_to_play
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
