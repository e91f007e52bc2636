"""Embeddings: a vector for every image of the histories, for every entry of a method's memory, and for every word that an
agent may see with.
"""

TRAIN_IMAGES = rule_of("train_images")
EMBED_IMAGES = rule_of("embed_images")
EMBED = rule_of("embed")
TRAIN_VISION_LANGUAGE = rule_of("train_vision_language")
EMBED_VOCABULARY = rule_of("embed_vocabulary")


rule train_images:
    input:
        TRAIN_IMAGES.reads,
    output:
        **TRAIN_IMAGES.outputs(update),
    log:
        TRAIN_IMAGES.log,
    priority: TRAIN_IMAGES.priority
    conda:
        TRAIN_IMAGES.conda
    threads: TRAIN_IMAGES.threads
    resources:
        **TRAIN_IMAGES.resources,
    params:
        **TRAIN_IMAGES.params,
    shell:
        TRAIN_IMAGES.command


rule embed_images:
    input:
        EMBED_IMAGES.reads,
    output:
        **EMBED_IMAGES.outputs(update),
    log:
        EMBED_IMAGES.log,
    priority: EMBED_IMAGES.priority
    conda:
        EMBED_IMAGES.conda
    threads: EMBED_IMAGES.threads
    resources:
        **EMBED_IMAGES.resources,
    params:
        **EMBED_IMAGES.params,
    shell:
        EMBED_IMAGES.command


rule embed:
    input:
        EMBED.reads,
    output:
        **EMBED.outputs(update),
    log:
        EMBED.log,
    priority: EMBED.priority
    conda:
        EMBED.conda
    threads: EMBED.threads
    resources:
        **EMBED.resources,
    params:
        **EMBED.params,
    shell:
        EMBED.command


# A small model of images and texts, trained on pictures that the job draws itself: one core, minutes.
rule train_vision_language:
    output:
        **TRAIN_VISION_LANGUAGE.outputs(update),
    log:
        TRAIN_VISION_LANGUAGE.log,
    priority: TRAIN_VISION_LANGUAGE.priority
    conda:
        TRAIN_VISION_LANGUAGE.conda
    threads: TRAIN_VISION_LANGUAGE.threads
    resources:
        **TRAIN_VISION_LANGUAGE.resources,
    params:
        **TRAIN_VISION_LANGUAGE.params,
    shell:
        TRAIN_VISION_LANGUAGE.command


rule embed_vocabulary:
    input:
        EMBED_VOCABULARY.reads,
    output:
        **EMBED_VOCABULARY.outputs(update),
    log:
        EMBED_VOCABULARY.log,
    priority: EMBED_VOCABULARY.priority
    conda:
        EMBED_VOCABULARY.conda
    threads: EMBED_VOCABULARY.threads
    resources:
        **EMBED_VOCABULARY.resources,
    params:
        **EMBED_VOCABULARY.params,
    shell:
        EMBED_VOCABULARY.command
