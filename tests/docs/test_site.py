"""The site that `make docs` builds: built once, and looked at from outside."""

import dataclasses
import html
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import click
import pytest
from helpers.browser import needs_chromium, opened

import pucache
from pucache.cli.main import main

pytestmark = pytest.mark.slow  # the site is built, which takes a minute
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS) for path in DOCS.rglob("*.md") if "_build" not in path.parts)
FLAGS = re.search(r"sphinx-build (.+) docs docs/", (ROOT / "Makefile").read_text())[1].split()
ELSEWHERE = ("http:", "https:", "mailto:", "data:")
VERBS = [None, *main.commands]

# public in documented modules, and for pucache's own modules alone
OURS = {
    "pucache.cache.embedding_cache": {
        "check_same_encoder",
        "expand_paths",
        "is_cache",
        "open_cache",
        "open_files",
    },
    "pucache.cache.keys": {"decode_text", "decode_texts", "encode_keys", "find_duplicate", "find_sorted"},
    "pucache.cache.local_copies": {
        "folder_of",
        "parent_folder",
        "remove_copies",
        "sidecar_base",
        "url_of_copy",
        "working_folder",
    },
    "pucache.cache.merging": {"check_replaces", "merge", "without_embedded"},
    "pucache.demonstration": {"contact_sheet"},
    "pucache.encoders.deferred": {"DeferredEncoder", "open_encoder"},
    "pucache.encoders.spec": {"preprocessing_fields", "weights_digest"},
    "pucache.errors": {"StaleDecisionError", "one_line", "picklable_error"},
    "pucache.heads.solve": {"SoftTargetTrainer", "flushed_denormals"},
    "pucache.heads.minibatch": {"train"},
    "pucache.heads.risks": {"negative_loss", "positive_loss"},
    "pucache.images.listing": {
        "ListingBuilder",
        "check_shard",
        "check_shard_images",
        "check_size",
        "in_reading_order",
        "is_image",
        "is_hidden",
        "is_special_file",
        "take_shard",
        "take_shards",
    },
    "pucache.images.source": {"image_digest"},
    "pucache.neighbours.graph": {"NeighbourSearch"},
    "pucache.neighbours.graph_file": {
        "checksums_of",
        "graph_path",
        "kept_graph",
        "read_graph",
        "sidecar_path",
        "write_graph",
    },
    "pucache.pages.report": {"warnings", "write_report"},
    "pucache.pretraining.network": {"Network", "build_network"},
    "pucache.pretraining.preview": {"save_view_sheet"},
    "pucache.pretraining.recipes": {"build_optimizer", "find_recipe"},
    "pucache.pretraining.run_folder": {"RunFolder", "require_tensorboard", "restore"},
    "pucache.progress": {"Silent"},
    "pucache.training.neighbour_evidence": {"agreement_gains", "held_out_gains"},
    "pucache.training.estimate_prior": {"check_request", "estimates_by_method"},
    "pucache.labels.label_files": {"listed_positives", "name_first", "read_decisions", "short_digest", "decided_rows"},
    "pucache.labels.concepts": {"check_names", "joint_labels"},
    "pucache.training.concept_models": {"model_path"},
    "pucache.training.sklearn_classifier": {"cache_margins", "linear_margins"},
    "pucache.labels.labels": {"open_labels"},
    "pucache.estimates.calibration": {
        "Likelihood",
        "binned",
        "deviance_within_pile",
        "effective_number",
        "log_likelihood",
        "profile_ends",
        "shift_to_mean",
        "stated_tilt",
    },
    "pucache.estimates.intervals": {"interval_of", "prior_range", "say_nothing", "stated_text"},
    "pucache.estimates.label_requirements": {"assumption", "figure", "range_text"},
    "pucache.estimates.metrics": {"precision_at", "share_above"},
    "pucache.estimates.scar": {"two_sample"},
    "pucache.estimates.thresholds": {"expected_recall_precision", "near_share", "parse_rule"},
    "pucache.estimates.priors": {
        "best_bin",
        "density_ratio",
        "deviance_limit",
        "interval_text",
        "label_frequency",
        "moved",
    },
    "pucache.estimates.dataset_shift": {"PileSample", "check_shift", "margin_distance", "weights_at"},
    "pucache.cache.exporting": {"check_parquet"},
    "pucache.storage.tables": {"Row", "open_table", "read_rows", "read_table", "six_digits", "table_writer"},
    "pucache.scoring.score": {
        "load_encoder_of",
        "at_given_share",
        "earlier_scores",
        "embed_for",
        "open_model",
        "planned",
        "scored_rows",
        "with_new_images",
        "with_posterior",
    },
    "pucache.scoring.score_tables": {
        "EarlierScores",
        "check_output",
        "part_outputs",
        "write_scores",
        "write_wide_scores",
    },
    "pucache.training.train_on_cache": {"is_audited", "label_note"},
    "pucache.labels.sample": {"copied_rows", "draw_sample", "key_numbers", "sample_size", "smallest_numbers"},
    "pucache.retrieval.ranking": {
        "Scorer",
        "Scores",
        "check_diverse",
        "in_order",
        "pool_size",
        "save_concepts",
        "select_diverse",
        "top_rows",
    },
    "pucache.retrieval.retrieve": {"choose_scorer", "rank_unlabelled"},
    "pucache.reviewing.audit": {"audit_entries"},
    "pucache.reviewing.serve": {
        "Server",
        "ServerAddress",
        "keep_address",
        "kept_address",
        "identifier",
        "listening_socket",
        "open_concept_sessions",
        "open_in_browser",
        "printed_url",
        "user_name",
    },
    "pucache.reviewing.session": {"Session", "open_session", "read_session", "session_labels"},
    "pucache.scaling.embed_shards": {"ShardsJob", "Share"},
    "pucache.scaling.rank_shards": {"ShardPasses"},
    "pucache.scaling.tasks": {"ShardTasks", "cores_per_task", "count", "is_retry"},
    "pucache.storage.rows": {
        "drop_pages",
        "finite_rows",
        "release_pages",
        "row_slices",
        "row_step",
        "rows_not_finite",
        "take_rows",
    },
}


# --- the site ----------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a page links to, what it shows, and the anchors that it has."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], set()
        self.markup = path.read_text()
        self.feed(self.markup)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors |= {values["id"]} if "id" in values else set()
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        loaded = values.get("src") if tag in ("img", "script") else values.get("href") if tag == "link" else None
        if loaded and values.get("rel") not in ("index", "search", "next", "prev"):
            self.loaded.append(loaded)

    @property
    def text(self):
        """All words of the page, a space between any two."""
        return " ".join(html.unescape(re.sub(r"<[^>]+>", "", self.markup)).split())


class Site(NamedTuple):
    """The folder that was built, its pages by path, and its inventory: names by kind."""

    folder: Path
    pages: dict[Path, Page]
    inventory: dict[str, set[str]]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build as `make docs` does, where nothing can be fetched."""
    pytest.importorskip("sphinx", reason="no sphinx; install pucache[test]")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", *FLAGS, "-d", folder / "doctrees", DOCS, folder / "html"]
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    environ = {**os.environ, **nowhere, "OMP_NUM_THREADS": "1"}
    return folder / "html", subprocess.run(command, capture_output=True, text=True, env=environ)


@pytest.fixture(scope="module")
def site(built):
    folder, ended = built
    assert (folder / "objects.inv").is_file(), ended.stderr
    pages = {path: Page(path) for path in folder.rglob("*.html")}
    stored = (folder / "objects.inv").read_bytes().split(b"\n", 4)[4]
    inventory = {}
    for line in zlib.decompress(stored).decode().splitlines():
        name, kind = re.match(r"(.+?) (\S+:\S+) ", line).groups()
        inventory.setdefault(kind, set()).add(name)
    return Site(folder, pages, inventory)


def test_the_site_builds_without_a_warning(built):
    _, ended = built
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr
    assert {"-n", "-W", "--keep-going"} <= set(FLAGS), "strict, and all warnings at once"


def broken(site, path, links):
    """Those of a page's links that lead nowhere on the site."""
    for link in links:
        parts = urlsplit(link)
        if link.startswith(ELSEWHERE):
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        anchors = site.pages[target].anchors if target in site.pages else ()
        if not target.is_file() or (anchors and parts.fragment and unquote(parts.fragment) not in anchors):
            yield link


def test_every_link_leads_to_a_page_and_an_anchor_that_are_there(site):
    broken_links = {
        str(path.relative_to(site.folder)): list(broken(site, path, page.links)) for path, page in site.pages.items()
    }
    assert sum(len(page.links) for page in site.pages.values()) > 1000
    assert not {path: links for path, links in broken_links.items() if links}


def test_every_picture_style_and_script_is_there_and_nothing_comes_from_elsewhere(site):
    wrong = [
        (path.name, loaded)
        for path, page in site.pages.items()
        for loaded in page.loaded
        if not loaded.startswith("data:") and not (path.parent / unquote(urlsplit(loaded).path)).is_file()
    ]
    assert not wrong
    assert sum("_images/" in loaded for page in site.pages.values() for loaded in page.loaded) > 10


# --- commands ----------------------------------------------------------------------------------


def command_page(site):
    return site.pages[site.folder / "reference/commands.html"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_a_command_is_on_the_page_with_its_help(site, verb):
    command, program = (main.commands[verb], f"pucache-{verb}") if verb else (main, "pucache")
    text = command_page(site).text
    for option in (one for one in command.get_params(click.Context(command)) if isinstance(one, click.Option)):
        assert len(option.help or "") > 5, option.name
        for spelled in {*option.opts, *option.secondary_opts} - {"-h"}:
            assert f"{program}.{spelled}" in site.inventory["std:cmdoption"], spelled
        help = option.help.partition("  [default")[0].replace("`", "")
        assert " ".join(help.split()) in text, option.name


@pytest.mark.parametrize("verb", VERBS)
def test_the_examples_of_a_command_stand_on_the_page_line_by_line(site, verb):
    help = inspect.cleandoc((main.commands[verb] if verb else main).help)
    lines = [line for line in help.splitlines() if re.match(r"(pucache|torchrun) ", line)]
    markup = html.unescape(re.sub(r"<[^>]+>", "", command_page(site).markup)).splitlines()
    assert lines and set(lines) <= set(markup)
    assert [shlex.split(line, comments=True) for line in lines]


# --- Python ------------------------------------------------------------------------------------

KINDS = ("py:class", "py:exception", "py:function", "py:method", "py:property")


def named(name):
    """What a dotted name stands for."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            target = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        try:
            for part in parts[cut:]:
                target = inspect.getattr_static(target, part) if inspect.isclass(target) else getattr(target, part)
        except AttributeError:
            continue
        return target
    raise LookupError(name)


@pytest.fixture(scope="module")
def documented(site):
    """Dotted name to object, of everything on the pages about Python; what is exported by that name alone."""
    elsewhere = {home(getattr(pucache, name)) for name in pucache.__all__ if not name.startswith("_")}
    names = {name for kind in KINDS for name in site.inventory.get(kind, ())}
    return {name: named(name) for name in names if name not in elsewhere}


def home(target):
    return f"{target.__module__}.{target.__qualname__}"


def is_ours(module, name, target):
    kinds = inspect.isclass(target) or inspect.isfunction(target)
    return kinds and not name.startswith("_") and target.__module__ == module


def public_members(target):
    kinds = (staticmethod, classmethod, property)
    return [
        name
        for name, member in vars(target).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, kinds))
    ]


def test_every_exported_name_is_documented_under_the_name_it_is_imported_by(documented):
    exported = {f"pucache.{name}" for name in pucache.__all__ if not name.startswith("_")}
    assert len(exported) > 5 and exported <= set(documented)


def test_every_public_name_of_a_documented_module_is_documented_or_ours_alone(documented):
    homes = {home(target): name for name, target in documented.items() if hasattr(target, "__qualname__")}
    modules = {
        target.__module__ for target in documented.values() if inspect.isclass(target) or inspect.isfunction(target)
    }
    public = {
        (module, name)
        for module in modules
        for name, target in vars(importlib.import_module(module)).items()
        if is_ours(module, name, target)
    }
    ours = {(module, name) for module, names in OURS.items() for name in names}
    assert {(module, name) for module, name in public if f"{module}.{name}" not in homes} == ours
    assert not {f"{module}.{name}" for module, name in ours} & set(homes)


def test_every_public_method_of_a_documented_class_is_documented(documented):
    classes = {name: target for name, target in documented.items() if inspect.isclass(target)}
    expected = {f"{name}.{member}" for name, target in classes.items() for member in public_members(target)}
    assert len(expected) > 50
    assert not (missing := expected - set(documented)), missing


def fields(target):
    own = "__dataclass_fields__" in vars(target)  # not those of a class that it inherits from
    names = [field.name for field in dataclasses.fields(target)] if own else []
    return [name for name in names if not name.startswith("_")]


def made_from(target):
    """Names that a class is made from; none where no caller makes it, as with a protocol or an error."""
    if (
        "__dataclass_fields__" in vars(target)
        or "__init__" not in vars(target)
        or getattr(target, "_is_protocol", False)
    ):
        return fields(target)
    return [name for name in inspect.signature(target.__init__).parameters if name != "self"]


def described(doc, section):
    """Names that a section of a docstring describes; one entry may describe several."""
    return [name.lstrip("*") for entry in doc[section] for name in entry.name.split(", ")]


def has_arguments(target):
    return bool(set(inspect.signature(target).parameters) - {"self", "cls"})


def faults(name, target):
    """What a docstring lacks: itself, a parameter, a field, or what is returned where arguments decide it."""
    from numpydoc.docscrape import NumpyDocString
    from numpydoc.validate import validate

    codes = {"GL08", "PR01", "PR02", "PR03", "RT02", "YD01"}
    function = target.__func__ if isinstance(target, classmethod | staticmethod) else target
    if inspect.isfunction(function) and has_arguments(function):
        codes |= {"RT01"}
    if inspect.isclass(target):
        doc = NumpyDocString(inspect.cleandoc(target.__doc__ or ""))
        names = described(doc, "Parameters") or described(doc, "Attributes")
        if set(made_from(target)) - set(names) or (fields(target) and set(names) - set(fields(target))):
            return [f"{name}: MADE it is made from {made_from(target)}, its docstring describes {names}"]
        codes -= set() if described(doc, "Parameters") else {"PR01"}  # the attributes are the parameters
    return [f"{name}: {code} {text}" for code, text in validate(name)["errors"] if code in codes]


def test_every_documented_name_has_a_docstring_that_matches_its_signature(documented):
    pytest.importorskip("numpydoc", reason="no numpydoc; install pucache[test]")
    assert len(documented) > 120
    assert not [fault for name, target in documented.items() for fault in faults(name, target)]


def test_the_names_of_pucache_in_docstrings_exist(documented):
    texts = [inspect.getdoc(target) or "" for target in documented.values() if not isinstance(target, property)]
    mentioned = {name for text in texts for name in re.findall(r"`(pucache\.[\w.]+)`", text)}
    assert len(mentioned) > 10
    for name in mentioned:
        assert named(name) is not None
    with pytest.raises(LookupError):
        named("pucache.nowhere")


def test_the_fields_of_a_class_stand_on_its_page(site, documented):
    text = {path.name: page.markup for path, page in site.pages.items() if path.parent.name == "reference"}
    for name, target in documented.items():
        if inspect.isclass(target) and fields(target):
            (markup,) = (page for page in text.values() if f'id="{name}"' in page)
            entry = re.split(r'<dl class="py (?:class|function|exception)">', markup.partition(f'id="{name}"')[2])[0]
            assert all(re.search(rf"<strong>(?:[\w, ]+, )?{field}\b", entry) for field in fields(target)), name


# --- as it is seen -----------------------------------------------------------------------------

PHONE = {"width": 390, "height": 844}
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@needs_chromium
def test_no_page_is_wider_than_a_phone(site, browser):
    with opened(browser, site.folder / "index.html", viewport=PHONE) as page:
        for path in PAGES:
            page.goto((site.folder / path.with_suffix(".html")).as_uri())
            assert page.evaluate(TOO_WIDE) <= 0, path


@needs_chromium
def test_the_search_page_finds_an_option_and_a_class(site, browser):
    for wanted, page_name in [("deploy-prior", "reference/commands.html"), ("PULinearClassifier", "classifier.html")]:
        with opened(browser, site.folder / "search.html") as page:
            page.goto(f"{page.url}?q={wanted}")
            page.locator("#search-results li a").first.wait_for()
            links = page.locator("#search-results li a").evaluate_all("all => all.map(a => a.href)")
            assert any(page_name in link for link in links)
