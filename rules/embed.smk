"""Embeddings: a vector for every image of the histories, for every entry of a method's memory, and for every word that an
agent may see with.
"""


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
        runtime=minutes(120, 480, resumes=True),
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


# A small model of images and texts, trained on pictures that the job draws itself: one core, minutes.
rule train_vision_language:
    output:
        model=paths.trained_model("{scale}", "{model}"),
        model_manifest=paths.manifest(paths.trained_model("{scale}", "{model}")),
        accuracy=paths.model_accuracy("{scale}", "{model}"),
        accuracy_manifest=paths.manifest(paths.model_accuracy("{scale}", "{model}")),
    log:
        "logs/{scale}/models/{model}.log",
    benchmark:
        "logs/{scale}/models/{model}.benchmark.jsonl"
    priority: 58
    conda:
        BASE_PACKAGES
    resources:
        mem_mb=2000,
        runtime=60,
    params:
        settings=params_of("vision_language_settings", "scale", "model"),
        code=params_of("vision_language_code"),
    shell:
        "recollect train-vision-language --scale {wildcards.scale} --model {wildcards.model}"
        " --threads {threads} > {log} 2>&1"


rule embed_vocabulary:
    input:
        unpack(inputs_to_embed_vocabulary),
    output:
        vocabulary=paths.token_vocabulary("{scale}", "{vocabulary}"),
        manifest=paths.manifest(paths.token_vocabulary("{scale}", "{vocabulary}")),
    log:
        "logs/{scale}/token_vocabularies/{vocabulary}.log",
    benchmark:
        "logs/{scale}/token_vocabularies/{vocabulary}.benchmark.jsonl"
    priority: 57
    conda:
        BASE_PACKAGES
    threads: job_threads
    resources:
        # CLIP in float32, as it is read and as it is run, and a batch of texts.
        mem_mb=megabytes(small=1500, paper=4000),
        runtime=minutes(60, 480),
        gpu=vocabulary_gpus,
    params:
        settings=params_of("vocabulary_settings", "scale", "vocabulary"),
        code=params_of("vocabulary_code"),
    shell:
        "recollect embed-vocabulary --scale {wildcards.scale} --vocabulary {wildcards.vocabulary}"
        " --device auto --threads {threads} > {log} 2>&1"
