"""Options of pucache 0.4 that went, by command, and what to do instead.

An old value of an option that stays is spelled ``--option value``.
"""

_LABELS = {
    "--negatives": "pucache labels CACHE FILE --negatives FILE writes one table; give it as --labels",
    "--concepts": "pucache labels CACHE TABLE writes one table with a column concept; give it as --labels",
    "--key-column": "pucache labels CACHE TABLE --key-column NAME writes a table; give it as --labels",
    "--label-column": "pucache labels CACHE TABLE --label-column NAME writes a table; give it as --labels",
    "--label-value": "pucache labels CACHE TABLE --label-value TEXT writes a table; give it as --labels",
    "--label-value-exact": "pucache labels CACHE TABLE --label-value TEXT writes a table; give it as --labels",
    "--match-keys": "pucache labels CACHE TABLE --match-keys RULE writes a table; give it as --labels",
    "--all-parts": "pucache labels CACHE TABLE --all-parts writes a table; give it as --labels",
    "--encoding": "pucache labels CACHE TABLE --encoding NAME writes a table; give it as --labels",
}
_GROUPS = {"--groups": "pucache labels CACHE FILE --groups TABLE writes one table; give it as --labels"}
_REVIEW = {
    "--session": "give the folder of the review as --labels",
    "--readers": "the labels are those of --labels; --beside adds those of another reader",
}
_DEVICE = {"--device": "set the environment variable PUCACHE_DEVICE"}
_WEIGHTS = {
    "--weights": "set the environment variable PUCACHE_WEIGHTS to the folder of the file; in Python it is weights="
}
_TRAINING = {
    "--all": "train-pu --all takes all rows; here a sample is large enough",
    **_DEVICE,
    "--seed": "in Python it is seed=; train-pu --seed trains by another one",
}
_TWINS = {
    "--twins": "duplicates are images of cosine 0.999 and above; in Python it is twins=, and train-pu has --twins"
}
_RISK = {
    "--surrogate": "the surrogate of --loss is its default; in Python PULinearClassifier(surrogate=)",
    "--target-prior": "it follows from the prior; in Python PULinearClassifier(target_prior=)",
}
_CLUSTER = {
    "--engine": "it runs on this machine; embed --ray embeds on a cluster",
    "--address": "it runs on this machine; embed --ray embeds on a cluster",
}
_FORCE = {"--force": "remove the file first, or name another one with --out"}
_TRUTH = {name: said.replace("give it as --labels", "give it as --truth") for name, said in _LABELS.items()}
REMOVED = {
    "audit": {"--readers": "--beside adds the labels of another reader; without it those of SESSION count"},
    "embed": {
        "--profile": "--json has the time of each stage, under profile",
        "--moved": "a source with the same images is accepted; for others write another cache",
        "--engine": "give --ray, with the address of the cluster where it has one",
        "--address": "give the address with --ray",
        "--overlap": "give it with --tiles, such as 512:64",
        "--dtype": "embeddings are float16; in Python it is dtype=",
        "--labels-to": "pucache labels CACHE SOURCE --label-column NAME reads labels beside images",
        "--label-column": "pucache labels CACHE SOURCE --label-column NAME reads labels beside images",
    },
    "demo": _DEVICE,
    "estimate-prior": {
        **_LABELS,
        **_GROUPS,
        **_TRAINING,
        **_TWINS,
        "--method": "the estimate is that of train-pu; leave it out",
    },
    "evaluate": {
        "--at": "precision is that of 100 and of 1,000 images; in Python it is at=",
        **{name: _TRUTH[name] for name in _TRUTH if name not in ("--negatives", "--concepts")},
        "--exclusive": "evaluate each concept, with --concept",
        "--source": "score writes a table for each source; evaluate takes several, and has figures for each",
    },
    "export": {
        **_WEIGHTS,
        "--scores": "join the table of scores with the exported one by the column key",
        "--force": "remove the file first",
    },
    "import-embeddings": {
        "--dtype": "embeddings are stored as they are, but float64 as float32; in Python it is dtype=",
        "--row-numbers": "they are the keys where no others are named; in Python it is row_numbers=",
    },
    "pretrain": {
        "--compile": "on a GPU long runs are compiled, unless TORCH_COMPILE_DISABLE is 1",
        "--force": "remove the file first",
        "--save-every": "a checkpoint is written every five minutes, and by Ctrl-C and --minutes",
        "--strict": "images that could not be read are listed; in Python they are in the report",
        "--stem": "--size says it: views of at most 64 pixels have a small stem",
    },
    "report": {
        **_LABELS,
        **_GROUPS,
        **_REVIEW,
        **_TRAINING,
        **_TWINS,
        **_FORCE,
        "--sample": "the map shows 1,500 unlabelled images; in Python it is sample=",
    },
    "retrieve-positives": {
        **_LABELS,
        **_DEVICE,
        **_WEIGHTS,
        **_TWINS,
        **_CLUSTER,
        **_FORCE,
        "--by similarity": "use --by whitened",
        "--review": "use --page",
        "--similarity": "use --by whitened or --by topk",
        "--text-encoder": "set the environment variable PUCACHE_TEXT_ENCODER to the folder",
        "--workers": "it runs on this machine; leave it out",
    },
    "review": {
        **_LABELS,
        **_GROUPS,
        **_TWINS,
        **_DEVICE,
        **_WEIGHTS,
        "--export": "pucache labels CACHE REVIEW writes the table",
        "--json": "pucache labels CACHE REVIEW --json prints what it writes, audit --json what is hidden",
        "--second-reader": "begin a review of the second reader: --session FOLDER --beside REVIEW",
        "--text-encoder": "set the environment variable PUCACHE_TEXT_ENCODER to the folder",
    },
    "score": {
        **_CLUSTER,
        **_DEVICE,
        **_FORCE,
        **_WEIGHTS,
        "--append": "score writes a table for each source; evaluate takes several",
        "--day": "score writes a table for each source; name it after the day with --out",
        "--exclusive": "of the columns CONCEPT_margin of the table the largest wins",
        "--moved": "a source with the same images is accepted; for others name another --cache",
        "--precision": "embed the images first, with embed --precision, and score the cache",
        "--runtime": "embed the images first, with embed --runtime, and score the cache",
        "--shard": "embed --shard embeds a share of the images; score the cache",
        "--strict": "embed the images first, with embed --strict, and score the cache",
        **dict.fromkeys(("--batch-size", "--workers"), "embed the images first, and score the cache"),
    },
    "sweep-priors": {
        **{name: said for name, said in _LABELS.items() if name != "--concepts"},
        **_RISK,
        "--solver": "it is that of train-pu by default; in Python PULinearClassifier(solver=)",
        **_TRAINING,
        **_TWINS,
        **_FORCE,
        "--no-plot": "the plot lies beside the table; remove it",
        "--penalty": "it is chosen as train-pu chooses it; in Python PULinearClassifier(penalty=)",
        "--truth": "train-pu at each of two priors, and evaluate their scores with --truth",
    },
    "train-pu": {
        **_LABELS,
        **_GROUPS,
        **_REVIEW,
        **_DEVICE,
        **_RISK,
        **_FORCE,
        "--exclusive": "train without it, score the folder of models, and take the concept of the largest margin",
        "--metrics": "the metrics are written beside --out, as NAME.metrics.json",
    },
}
