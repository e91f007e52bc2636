"""Indexes: near-duplicates dropped, then an exact search index and its row table."""


rule index:
    input:
        embeddings=paths.embeddings("{scale}", "{env}", "{method}"),
    output:
        index=paths.index("{scale}", "{env}", "{method}"),
        index_manifest=paths.manifest(paths.index("{scale}", "{env}", "{method}")),
        rows=paths.rows("{scale}", "{env}", "{method}"),
        rows_manifest=paths.manifest(paths.rows("{scale}", "{env}", "{method}")),
    log:
        "logs/{scale}/{env}/{method}/index.log",
    benchmark:
        "logs/{scale}/{env}/{method}/index.benchmark.jsonl"
    priority: 45
    conda:
        BASE_PACKAGES
    threads: job_threads
    resources:
        # The keys, a normalised copy, and the index: three times the embeddings.
        mem_mb=megabytes(small=1000, paper=4000),
        runtime=minutes(30, 120),
    params:
        settings=params_of("memory_settings", "scale", "env", "method"),
        code=memory_code_of("index"),
    shell:
        "recollect index --scale {wildcards.scale} --env {wildcards.env} --method {wildcards.method}"
        " --threads {threads} > {log} 2>&1"
