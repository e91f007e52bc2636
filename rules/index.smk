"""Indexes: near-duplicates dropped, then an exact search index and its row table."""

INDEX = rule_of("index")


rule index:
    input:
        INDEX.reads,
    output:
        **INDEX.outputs(update),
    log:
        INDEX.log,
    priority: INDEX.priority
    conda:
        INDEX.conda
    threads: INDEX.threads
    resources:
        **INDEX.resources,
    params:
        **INDEX.params,
    shell:
        INDEX.command
