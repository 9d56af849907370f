"""What the paper printed: Dorigatti, Schweisthal, Bischl, Rezaei, ImPULSeS; in %, means of three runs, no spread given.

Accuracy, F1 and AUC on the test set at margin 0, where nothing else is said; None is what was not printed.
"""

TEN, BALANCED, HUNDRED, GLAUCOMA = "CIFAR-10, 1:10", "CIFAR-10, all images", "CIFAR-100, 1:9", "Glaucoma, 2:3"
FOOTWEAR = "Fashion-MNIST, footwear, 1:10"  # not in the paper
NOT_MEASURED = (HUNDRED, GLAUCOMA)  # of the paper's data sets

# tables "Baselines", "Transfer Learning" and "PU vs. supervised"
RESULTS = {
    TEN: {
        "the paper, imbnnPU from scratch": (86.54, 83.06, 93.18),
        "the paper, SimCLR and clustering": (60.05, 0.25, 98.67),
        "the paper, debiased contrastive and clustering": (60.03, 0.15, 98.93),
        "the paper, ImageNet ResNet-50": (95.07, 93.82, 98.97),
        "the paper, ImPULSeS (pretrained on CIFAR-10)": (95.25, 94.01, 98.99),
        "the paper, supervised from scratch (wBCE)": (91.0, 88.3, 96.8),
        "the paper, supervised on ImPULSeS' features (wBCE)": (95.9, 94.9, 99.4),
    },
    BALANCED: {
        "the paper, ImPULSeS (pretrained on CIFAR-10), 3,000 labelled": (97.15, 96.41, 99.40),
    },
    HUNDRED: {
        "the paper, imbnnPU from scratch": (86.68, 44.06, 82.87),
        "the paper, ImageNet ResNet-50": (91.57, 68.39, 97.14),
        "the paper, ImPULSeS (pretrained on CIFAR-100)": (89.11, 62.64, 95.89),
        "the paper, supervised on ImPULSeS' features (wBCE)": (91.7, 68.8, 97.1),
    },
    GLAUCOMA: {
        "the paper, imbnnPU from scratch": (75.00, 67.01, 77.70),
        "the paper, ImageNet ResNet-50": (65.28, 53.18, 72.46),
        "the paper, ImPULSeS (pretrained on the fundus images)": (74.22, 68.27, 77.32),
    },
}

# labelled P / unlabelled P / unlabelled N of the training sets
COUNTS = {TEN: "600 / 2,400 / 30,000", HUNDRED: "1,000 / 4,000 / 45,000", GLAUCOMA: "163 / 650 / 1,190"}

# method: labelled P, P in training, images in training, accuracy; the last one is of another paper
COMPETITORS = {
    "VPU": (3_000, 20_000, 50_000, 89.5),
    "PAN": (1_000, 20_000, 50_000, 89.7),
    "Self-PU": (3_000, 20_000, 50_000, 90.8),
    "PUUPL": (3_000, 20_000, 50_000, 91.4),
    "imbnnPU": (600, 3_000, 33_000, 86.5),
    "ImPULSeS": (600, 3_000, 33_000, 95.3),
    "ImPULSeS, all images": (3_000, 20_000, 50_000, 97.2),
    "NcPU (ICLR 2026; not in the paper)": (1_000, 20_000, 50_000, 97.36),
}

# features and loss of the head: accuracy, F1
LOSSES = {
    ("contrastive", "nnPU"): (93.09, 90.74),
    ("contrastive", "imbnnPU"): (94.26, 92.50),
    ("debiased", "nnPU"): (92.75, 90.20),
    ("debiased", "imbnnPU"): (95.29, 94.05),
    ("from scratch (wBCE)", "supervised wBCE"): (91.0, 88.3),
    ("on ImPULSeS' features (wBCE)", "supervised wBCE"): (95.9, 94.9),
}
