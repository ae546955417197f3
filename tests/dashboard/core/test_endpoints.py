"""Endpoints end to end: results, runs, costs, a changed model behind the address, and secrecy of
the key."""

from __future__ import annotations

import csv
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from poslens.attribution import datasets
from poslens.attribution.batching import estimated_tokens
from poslens.attribution.datasets import SAMPLE, SAMPLE_BIAS
from poslens.attribution.datasets.types import DataSet
from poslens.attribution.errors import Unavailable, UserError
from poslens.attribution.evaluation.bias_pairs import pairs_for
from poslens.attribution.evaluation.chunk_plan import settings_of
from poslens.attribution.interventions.null_controls import CONTROLS
from poslens.attribution.interventions.relocation import relocation_method
from poslens.attribution.interventions.segments import segments_method
from poslens.attribution.methods import Outcome, make_method
from poslens.attribution.pairs import Pairs
from poslens.attribution.retrievers import endpoint_client, limits, resolve
from poslens.attribution.retrievers.endpoint_address import key_name
from poslens.attribution.types import EvidenceSpan, TextPair
from poslens.cache import probes
from poslens.cache.jobs.attributions import computed
from poslens.cache.kinds.interventions import causes
from poslens.cache.lru_cache import forget_made
from poslens.compute import costs
from poslens.compute.compute import Compute, service
from poslens.compute.provenance import of_intervention
from poslens.compute.runs import in_turn
from poslens.dashboard.__main__ import app
from poslens.dashboard.widgets import sending
from poslens.export.files import attribution_frame, table_bytes
from poslens.figures.figure_base import UNKNOWN_SYMBOL
from poslens.figures.palettes import Style
from poslens.studies import declared
from poslens.studies.audit.study import AUDIT
from poslens.studies.audit.summary import measured_limit
from poslens.studies.bias.study import BIAS_STUDY
from poslens.studies.cause import service as interventions
from poslens.studies.cause.figures import relocation_scores
from poslens.studies.cause.tables import relocation_frame
from poslens.studies.chunks.study import CHUNKS
from poslens.studies.chunks.summary import ChunkCorpus
from poslens.studies.explain.service import head
from poslens.studies.ranking import service as rankings
from poslens.studies.ranking.figures import evidence_bins
from poslens.study import Asked
from poslens.study_plan import plan
from tests.support.endpoint_server import EndpointServer, hashed, running
from tests.support.pages import open_page

SENTENCE = make_method("occlusion", {"level": "sentence"})


def pair(number: int, name: str = "typed") -> TextPair:
    text = f"Fog number {number} is grey. The tide of {number} turns at dawn. Nobody saw more."
    at = text.index("The tide")
    span = EvidenceSpan(at, at + len(f"The tide of {number} turns at dawn."))
    return TextPair(
        f"p{number}", f"when does tide {number} turn", text, evidence=span, dataset=name
    )


PAIRS = [pair(number) for number in range(6)]


@pytest.fixture
def server() -> Iterator[EndpointServer]:
    with running(hashed) as found:
        yield found


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A separate home, no waiting between attempts, and no registered endpoints."""
    monkeypatch.setenv("POSLENS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(endpoint_client, "_FIRST_WAIT_S", 0.01)
    started_anew(monkeypatch)


@pytest.fixture
def own_service(apart: None) -> Iterator[Compute]:
    """The service that pages use, in that home."""
    service.cache_clear()
    yield service()
    service.cache_clear()


def started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear caches, like a new process."""
    monkeypatch.setattr(probes, "_known", {})
    for name in resolve.known():
        endpoint_client.forget(name)


def finished(job: object) -> str:
    """Run a job to its end and return its error."""
    run = job.start()  # type: ignore[attr-defined]
    run.wait()
    return str(run.error)


def test_a_result_is_requested_once_and_stored(server: EndpointServer, tmp_path: Path) -> None:
    spec, compute = resolve.register_endpoint(f"E5={server.url}#model=m"), Compute(tmp_path)
    first = compute.explain(PAIRS[0], spec, SENTENCE)
    n = len(server.requests)
    second = Compute(tmp_path).explain(PAIRS[0], spec, SENTENCE)
    assert second.from_cache and len(server.requests) == n
    assert np.array_equal(first.attribution.document_scores, second.attribution.document_scores)
    said = second.provenance()
    assert said.model_source == f"endpoint {server.url}/embeddings, model m"
    assert said.precision == "unknown"
    word = compute.explain(PAIRS[0], spec, make_method("occlusion")).provenance()
    assert word.method_preference.endswith("for E5, words are deleted")


def test_another_address_or_model_is_another_retriever(
    server: EndpointServer, tmp_path: Path
) -> None:
    compute, found = Compute(tmp_path), set()
    for behind in ("", "#model=a", "#model=b", "#similarity=dot", "#query_prompt=q"):
        spec = resolve.register_endpoint(f"E5={server.url}{behind}")
        found.add(compute._identify(spec).key.fingerprint)
    assert len(found) == 5


@pytest.mark.parametrize("kind", ["attribution", "relocation", "segments"])
def test_the_announced_cost_equals_what_is_sent(
    kind: str, server: EndpointServer, tmp_path: Path
) -> None:
    spec, compute = resolve.register_endpoint(f"E5={server.url}#price=2"), Compute(tmp_path)
    if kind == "attribution":
        job = compute.attribution_job(spec, SENTENCE, PAIRS, "some")
    else:
        what = relocation_method() if kind == "relocation" else segments_method("thirds")
        job = interventions.job(compute, spec, what, PAIRS, "some")
    compute.retriever(compute.identify(spec))  # its check also sends a few texts
    server.requests.clear()
    cost = job.cost()
    assert cost is not None and cost.bound == "" and not server.requests
    assert "at 2 per million tokens" in cost.words
    assert finished(job) == ""
    assert cost.requests == len(server.requests)
    # Each request contains the probe.
    assert cost.texts == sum(len(one["input"]) - 1 for one in server.requests)
    assert job.n_done() == 6 and job.cost() is None


@pytest.fixture(scope="module")
def twelve(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twelve short English documents of the sample with evidence, as a registered data set. Studies
    send the words of all; the six shortest would leave too few sentences for a debiased model."""
    place = tmp_path_factory.mktemp("twelve") / "twelve.csv"
    with place.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("query", "document", "evidence"))
        english = (each for each in datasets.read(SAMPLE).pairs if each.language == "eng")
        of_document = {each.document: each for each in english if each.evidence}
        for each in sorted(of_document.values(), key=lambda each: len(each.document))[6:18]:
            start, end = each.evidence.start, each.evidence.end
            rows.writerow((each.query, each.document, each.document[start:end]))
    datasets.register("twelve", place)
    return "twelve"


FEW = {
    "top": 2,
    "needles": 2,
    "lengths": (64,),
    "documents": 4,
    "windows": (64,),
    "overlaps": (0,),
}
"""Settings that keep studies small."""


@pytest.mark.parametrize("name", declared())
def test_counting_texts_does_not_change_what_a_study_sends(
    name: str, twelve: str, server: EndpointServer, tmp_path: Path
) -> None:
    """Placeholder answers of the count must not replace answers of the run; and a count without
    "about" or "at least" is exact."""
    study = declared()[name].load()
    settings = study.parameters.settings({k: v for k, v in FEW.items() if k in study.parameters})
    corpus = study.corpus(datasets.read(SAMPLE_BIAS if name == "bias" else twelve), settings)
    spec = resolve.register_endpoint(f"E5={server.url}")
    sent = []
    for counted in (False, True):
        compute = Compute(tmp_path / str(counted))
        planned = plan(study, compute, [spec], corpus, settings)
        assert planned.jobs or planned.refused
        if planned.jobs:
            compute.retriever(compute.identify(spec))
        server.sent.clear()
        for job in planned.jobs:
            server.requests.clear()
            cost = job.cost() if counted else None
            assert not counted or (cost is not None and not server.requests)
            assert finished(job) == ""
            if cost is not None and not cost.bound:
                assert (cost.texts, cost.tokens, cost.requests) == asked_of(server)
        sent.append(server.sent.copy())
    assert sent[0] == sent[1]


def asked_of(server: EndpointServer) -> tuple[int, int, int]:
    """Numbers of texts, without the probe in each request, of tokens, and of requests."""
    inputs = [one["input"] for one in server.requests]
    tokens = sum(estimated_tokens(text) for texts in inputs for text in texts)
    return sum(len(texts) - 1 for texts in inputs), tokens, len(inputs)


def test_the_cost_counts_only_what_is_not_stored(server: EndpointServer, tmp_path: Path) -> None:
    spec, compute = resolve.register_endpoint(f"E5={server.url}"), Compute(tmp_path)
    compute.explain(PAIRS[0], spec, SENTENCE)
    job = compute.attribution_job(spec, SENTENCE, PAIRS, "some")
    server.requests.clear()
    rest = job.cost()
    assert finished(job) == ""
    assert rest is not None and not rest.bound
    assert (rest.texts, rest.tokens, rest.requests) == asked_of(server)


def test_texts_that_several_parts_need_are_counted_and_sent_once(
    server: EndpointServer, tmp_path: Path
) -> None:
    spec, compute = resolve.register_endpoint(f"E5={server.url}"), Compute(tmp_path)
    compute.retriever(compute.identify(spec))
    ways = relocation_method(), segments_method("thirds"), segments_method("segments")
    jobs = [interventions.job(compute, spec, way, PAIRS, "some") for way in ways]
    key = ("parts", "", "", "", "")
    work = in_turn([(job.label, job) for job in jobs])
    whole = compute.job(key, "E5: passport", len(jobs), work, parts=tuple(jobs))
    alone = sum(cost.texts for job in jobs if (cost := job.cost()) is not None)
    server.requests.clear()
    cost = whole.cost()
    assert cost is not None and not cost.bound and cost.texts < alone
    assert whole.quote().startswith(f"PosLens will send E5 (passport): {cost.texts} texts, ")
    assert finished(whole) == ""
    assert (cost.texts, cost.tokens, cost.requests) == asked_of(server)
    sent = [text for one in server.requests for text in one["input"][1:]]
    assert len(sent) == len(set(sent))


def test_a_resumed_run_sends_no_text_again(server: EndpointServer, tmp_path: Path) -> None:
    spec, compute = resolve.register_endpoint(f"E5={server.url}"), Compute(tmp_path)
    compute.retriever(compute.identify(spec))
    stopped = interventions.job(compute, spec, relocation_method(), PAIRS, "some")
    received: list[str] = []
    server.requests.clear()

    def slowly(texts: list[str]) -> np.ndarray:
        received.extend(texts[1:])
        if len(server.requests) == 4:
            stopped.run.stop()
            time.sleep(0.3)
        return hashed(texts)

    server.embed = slowly
    assert finished(stopped) == "" and stopped.n_done() < 6 and len(server.requests) == 4
    server.embed = hashed
    forget_made()  # a new process has no texts in memory
    resumed = Compute(tmp_path)
    resumed.retriever(resumed.identify(spec))  # its check sends two texts again
    for way in (relocation_method(), segments_method("thirds")):
        job = interventions.job(resumed, spec, way, PAIRS, "some")
        server.requests.clear()
        cost = job.cost()
        assert finished(job) == "" and job.n_done() == 6
        assert cost is not None and (cost.texts, cost.tokens, cost.requests) == asked_of(server)
        received += [text for one in server.requests for text in one["input"][1:]]
    assert len(received) == len(set(received))


@pytest.mark.parametrize("kind", ["attribution", "relocation"])
def test_the_announced_cost_of_a_retry_equals_what_is_sent(
    kind: str, server: EndpointServer, tmp_path: Path
) -> None:
    spec, compute = resolve.register_endpoint(f"E5={server.url}"), Compute(tmp_path)
    model, moved = compute.identify(spec).key, relocation_method()
    if kind == "attribution":
        job = compute.attribution_job(spec, SENTENCE, PAIRS, "some")
        failed = [Outcome(pair, None, "Too long.") for pair in PAIRS[:2]]
        compute.store.put_encoded(model, SENTENCE, computed(failed, SENTENCE))
    else:
        job = interventions.job(compute, spec, moved, PAIRS, "some")
        refused = [(pair, "Too long.") for pair in PAIRS[:2]]
        causes(compute.root, moved).put_failures(model, moved, refused)
    whole = in_turn([("E5", job)])
    both = compute.job(("all", "", "", "", ""), "All", 1, whole, parts=(job,))
    assert finished(job) == "" and job.n_done() == 6 and len(job.failures()) == 2
    assert job.cost() is None and both.quote() == ""
    server.requests.clear()
    cost = job.cost(retry_failed=True)
    assert cost is not None and cost.bound == "" and not server.requests
    assert cost.words in job.quote(retry_failed=True)
    assert cost.words in both.quote(retry_failed=True)
    job.start(retry_failed=True).wait()
    assert cost.requests == len(server.requests)
    assert cost.texts == sum(len(one["input"]) - 1 for one in server.requests)
    assert not job.failures() and job.cost(retry_failed=True) is None


def asked_before_sending(page: AppTest, server: EndpointServer, questions: int) -> None:
    """Assert that an address alone sends nothing and the page first asks `questions` times."""
    server.sent.clear()
    page.run()
    assert not page.exception and not page.error
    assert [b.label for b in page.button].count("Send to E5") == questions
    assert not server.sent


def test_a_link_to_a_contrast_of_documents_sends_nothing(
    server: EndpointServer, own_service: Compute
) -> None:
    spec = resolve.register_endpoint(f"E5={server.url}")
    tests = (pairs_for(datasets.read(SAMPLE_BIAS), "brevity", "end", 250),)
    assert (
        finished(BIAS_STUDY.job(own_service, Asked(spec, tests, BIAS_STUDY.parameters.settings())))
        == ""
    )
    asked = {"models": ["E5"], "test": "brevity", "item": "brevity_bias/iss"}
    asked_before_sending(
        open_page("cause", tab="Bias tests", tests=["brevity"], **asked), server, 2
    )


def test_a_link_to_a_null_control_sends_nothing(
    server: EndpointServer, own_service: Compute
) -> None:
    spec = resolve.register_endpoint(f"E5={server.url}")
    first = datasets.read(SAMPLE).pairs[0]
    own_service.explain(first, spec, SENTENCE)
    asked = {"models": ["E5"], "pair": first.pair_id, "method": "occlusion", "level": "sentence"}
    page = open_page("explain", dataset=SAMPLE, control=CONTROLS["unrelated"], **asked)
    asked_before_sending(page, server, 1)
    page.button[[b.label for b in page.button].index("Send to E5")].click().run()
    assert not page.error and server.sent
    assert "Send to E5" not in [b.label for b in page.button]


def test_a_link_to_causes_sends_nothing(server: EndpointServer, own_service: Compute) -> None:
    spec = resolve.register_endpoint(f"E5={server.url}")
    first = datasets.read(SAMPLE).pairs[0]
    own_service.retriever(own_service.identify(spec))
    asked = {"models": ["E5"], "pair": first.pair_id, "method": "occlusion", "level": "sentence"}
    page = open_page("cause", dataset=SAMPLE, displace="true", **asked)
    asked_before_sending(page, server, 3)
    for left in (2, 1, 0):
        labels = [b.label for b in page.button]
        page.button[labels.index("Send to E5")].click().run()
        assert not page.error and server.sent
        assert [b.label for b in page.button].count("Send to E5") == left
    server.sent.clear()
    page.toggle("rank").set_value(True).run()
    assert not server.sent
    page.button[[b.label for b in page.button].index("Send to E5")].click().run()
    assert not page.error and server.sent and "Rank" in [one.label for one in page.metric]


def test_cause_defaults_to_sentences_for_an_endpoint_and_suggests_them_for_many_words(
    server: EndpointServer, own_service: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "MANY_TOKENS", 1000)
    spec = resolve.register_endpoint(f"E5={server.url}")
    first = datasets.read(SAMPLE).pairs[0]
    own_service.retriever(own_service.identify(spec))
    asked = {"models": ["E5"], "pair": first.pair_id, "method": "occlusion"}
    page = open_page("cause", dataset=SAMPLE, **asked).run()
    assert page.selectbox(key="level").value == "sentence"
    page.selectbox(key="level").select("word").run()
    assert page.selectbox(key="level").value == "word"
    captions = {caption.value.replace("\\", "") for caption in page.caption}
    line = next(one for one in captions if "of sentences, " in one)
    words, sentences = line.split("; at the level of sentences, ")
    assert _tokens(words) > 5 * _tokens(sentences)
    assert not page.exception and not page.error and not page.warning
    page = open_page("cause", dataset=SAMPLE, models=["BM25"], method="occlusion").run()
    assert page.selectbox(key="level").value == "word"


def _tokens(line: str) -> int:
    return int(line.partition(" token")[0].rpartition(" ")[2].replace(",", ""))


def test_the_cost_of_all_models_names_the_endpoints(
    server: EndpointServer, own_service: Compute
) -> None:
    specs = [resolve.register_endpoint(f"{name}={server.url}") for name in ("E5", "ours")]
    for spec in specs:
        own_service.retriever(own_service.identify(spec))
    setup = rankings.RankingSetup(rankings.collection_of(datasets.read(SAMPLE)))
    jobs = [rankings.job(own_service, spec, setup) for spec in (*specs, resolve.resolve("BM25"))]
    key = ("all", "", "", SAMPLE, "")
    work = in_turn([(each.label, each) for each in jobs])
    job = own_service.job(key, "All models", len(jobs), work, parts=tuple(jobs))
    assert job.endpoints() == ("E5", "ours")
    assert job.quote().startswith("PosLens will send E5, ours (All models): ")
    (one,) = (part for part in job.parts if part.label == "E5")
    assert one.quote().startswith("PosLens will send E5: ")
    moved = interventions.job(own_service, specs[0], relocation_method(), PAIRS, "some")
    assert moved.quote().startswith("PosLens will send E5 (relocation): ")


def test_the_context_limit_of_an_endpoint_is_unknown(
    server: EndpointServer, own_service: Compute
) -> None:
    spec, data = resolve.register_endpoint(f"E5={server.url}"), datasets.read(SAMPLE)
    assert limits.reads(spec) == "an unknown number of tokens"
    model = own_service.identify(spec)
    moved = interventions.ask(own_service, PAIRS[0], spec, relocation_method()).result()
    assert of_intervention(model, PAIRS[0], relocation_method(), moved).truncated is None
    figure = relocation_scores({"E5": moved}, None, Style(), unknown=["E5"])
    assert figure.data[0].marker.symbol == UNKNOWN_SYMBOL
    assert relocation_frame({"E5": moved}, None, ["E5"])["evidence read"].isna().all()
    assert relocation_frame({"E5": moved})["evidence read"].eq(1).all()
    own = DataSet("typed", "Typed", Pairs(PAIRS), ())
    setup = rankings.RankingSetup(rankings.collection_of(own))
    assert not finished(rankings.job(own_service, spec, setup))
    ranked = rankings.ranked(own_service, spec, setup)
    assert ranked is not None and ranked.evaluation.profile is not None
    assert ranked.evaluation.profile.mean_read is None and ranked.evaluation.read_whole is None
    figure = evidence_bins([ranked], Style())
    assert set(figure.data[1].marker.symbol) == {UNKNOWN_SYMBOL}
    assert measured_limit(own_service, spec, data) == ""
    explained = own_service.explain(PAIRS[0], spec, SENTENCE)
    (fact,) = [fact for fact in head(explained).facts if "context limit unknown" in fact.text]
    assert fact.title.startswith("The endpoint's context limit is unknown. The Audit page measures")


def test_studies_state_nothing_that_depends_on_an_unknown_context_limit(
    server: EndpointServer, twelve: str
) -> None:
    """Only with a number of words to send is it known what the endpoint reads."""

    def rows_of(study: str, table: str, address: str) -> list[dict[str, str]]:
        asked = [study, "--endpoint", f"E5={address}", "--model", "E5", "--dataset", twelve]
        done = CliRunner().invoke(app, [*asked, "--table", table, "--format", "csv", "--top", "1"])
        assert done.exit_code == 0, done.stderr
        lines = (line for line in done.stdout.splitlines() if not line.startswith("#"))
        return list(csv.DictReader(lines))

    for address, known in ((server.url, False), (f"{server.url}#words=40", True)):
        causes = [row["cause"] for row in rows_of("why", "causes", address)]
        assert ("not read" in causes) is known and "position" in causes
        misses = rows_of("why", "misses", address)
        assert misses and all((row["evidence_read"] != "") is known for row in misses)
        (audited,) = rows_of("audit", "summary", address)
        assert audited["truncated"] == audited["unretrieved_read"] == ""
        measured = rows_of("audit", "truncation", address)
        assert measured and all((row["context_limit"] == "40") is known for row in measured)


def test_the_number_of_words_to_send_is_a_context_limit(
    server: EndpointServer, own_service: Compute
) -> None:
    spec = resolve.register_endpoint(f"E5={server.url}#words=4")
    assert limits.reads(spec) == "the first 4 words" and not limits.unknown(spec)
    explained = own_service.explain(PAIRS[0], spec, SENTENCE)
    assert any(fact.text.startswith("reads 4 of ") for fact in head(explained).facts)
    assert "max length: 4 words" in explained.provenance().caption()


def test_nothing_is_sent_if_the_cost_cannot_be_confirmed(
    server: EndpointServer, own_service: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = resolve.register_endpoint(f"E5={server.url}")
    own_service.retriever(own_service.identify(spec))

    def unanswered(*_: object) -> bool:
        raise UserError("E5 cannot be counted.")

    monkeypatch.setattr(sending, "confirmed", unanswered)
    asked = {"models": ["E5"], "method": "occlusion", "level": "sentence"}
    page = open_page("cause", dataset=SAMPLE, displace="true", **asked)
    server.sent.clear()
    page.run()
    assert len(page.error) == 3 and not page.exception
    assert not server.sent


def test_a_local_model_has_no_cost(tmp_path: Path) -> None:
    job = Compute(tmp_path).attribution_job(resolve.resolve("BM25"), SENTENCE, PAIRS, "some")
    assert not job.sends and job.cost() is None


def test_a_failed_run_reports_the_error_and_loses_nothing(
    server: EndpointServer, tmp_path: Path
) -> None:
    spec, compute = resolve.register_endpoint(f"E5={server.url}"), Compute(tmp_path)
    what = relocation_method()
    compute.retriever(compute.identify(spec))
    embed, server.embed = server.embed, failing_after(server, 3)
    job = interventions.job(compute, spec, what, PAIRS, "some")
    assert "E5 fails (status 500)" in finished(job)
    done = job.n_done()
    assert 0 < done < 6
    assert not interventions.stored(compute, spec, what, PAIRS).failed
    server.embed, server.fail = embed, []
    assert finished(job) == "" and job.n_done() == 6


def failing_after(server: EndpointServer, requests: int) -> object:
    """Make the server fail after `requests` requests."""
    left = [requests]

    def embed(texts: list[str]) -> np.ndarray:
        left[0] -= 1
        if left[0] == 0:
            server.fail = [500] * 100
        return hashed(texts)

    return embed


def test_a_replaced_model_ends_the_run_and_starts_a_new_one(
    server: EndpointServer, tmp_path: Path
) -> None:
    spec, compute = resolve.register_endpoint(f"E5={server.url}"), Compute(tmp_path)
    before = compute._identify(spec)
    compute.explain(PAIRS[0], spec, SENTENCE)
    server.embed = lambda texts: hashed(texts)[:, ::-1]
    with pytest.raises(Unavailable, match="its model has changed"):
        compute.explain(PAIRS[1], spec, SENTENCE)
    after = compute._identify(spec)
    assert after.key.fingerprint != before.key.fingerprint
    assert not compute.explain(PAIRS[0], spec, SENTENCE).from_cache
    assert compute.store.get(before.key, SENTENCE, PAIRS[0]) is not None


def test_a_later_start_notices_the_change_and_recognizes_the_previous_model(
    server: EndpointServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec = resolve.register_endpoint(f"E5={server.url}")
    first = Compute(tmp_path)._identify(spec)
    server.embed = lambda texts: hashed(texts) * 1.001  # nearly the same, as servers answer
    started_anew(monkeypatch)
    assert Compute(tmp_path)._identify(spec) == first and not caplog.records
    server.embed = lambda texts: hashed(texts)[:, ::-1]
    started_anew(monkeypatch)
    with caplog.at_level(logging.WARNING):
        assert Compute(tmp_path)._identify(spec).key != first.key
    assert "its model has changed" in caplog.text
    server.embed = hashed
    started_anew(monkeypatch)
    assert Compute(tmp_path)._identify(spec) == first


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"a": 1}', '{"a": [{"weights": 1}]}', "[" * 9999]
)
def test_a_damaged_file_of_probes_is_ignored(
    damage: str, server: EndpointServer, tmp_path: Path
) -> None:
    spec = resolve.register_endpoint(f"E5={server.url}")
    (tmp_path / "home" / "cache").mkdir(parents=True)
    (tmp_path / "home" / "cache" / "endpoints.json").write_text(damage)
    assert len(Compute(tmp_path)._identify(spec).weights) == 16


def test_ranking_audit_and_reranking_work_with_an_endpoint(
    server: EndpointServer, tmp_path: Path
) -> None:
    compute = Compute(tmp_path)
    spec = resolve.register_endpoint(f"E5={server.url}")
    reranker = resolve.register_endpoint(f"RR={server.url}/rerank")
    data = datasets.read(SAMPLE)
    few = type(data)("few", "few", Pairs(pair(n, "few") for n in range(12)), ())
    setup = rankings.RankingSetup(rankings.collection_of(few), first_stage=spec)
    job = rankings.job(compute, spec, setup)
    cost = job.cost()
    assert cost is not None and cost.texts == 24
    assert finished(job) == ""
    found = rankings.ranked(compute, spec, setup)
    assert found is not None and found.evaluation.n == 12
    why = declared()["why"].load()
    settings = why.parameters.settings({"top": 11})  # misses no document
    (asked,) = why.subjects(compute, spec, why.corpus(few, settings), settings)
    explanations = why.job(compute, asked)
    assert explanations.quote() == "", "all vectors are stored"
    server.requests.clear()
    assert finished(explanations) == "" and not server.requests
    again = rankings.job(compute, reranker, setup)
    cost = again.cost()
    assert cost is not None and cost.texts == 144
    server.requests.clear()
    assert finished(again) == ""
    second = rankings.ranked(compute, reranker, setup)
    assert second is not None
    # Both compare the same vectors by cosine.
    assert [one.document_ids for one in second.rankings] == [
        one.document_ids for one in found.rankings
    ]
    settings = AUDIT.parameters.settings({"top": 2})
    (index,) = AUDIT.subjects(compute, spec, setup.collection, settings)
    audit = AUDIT.job(compute, index)
    assert audit.cost() is not None
    assert finished(audit) == ""
    done = AUDIT.summarize(compute, index)
    assert done is not None and len(done.documents) == 12
    assert "to the end" in AUDIT.verdict(done)
    (refused,) = AUDIT.subjects(compute, reranker, setup.collection, settings)
    with pytest.raises(UserError, match="has neither a dense vector per text nor an index"):
        AUDIT.job(compute, refused)


def test_a_reranker_states_what_it_sends_once_its_first_stage_is_complete(
    twelve: str, server: EndpointServer, own_service: Compute
) -> None:
    reranker = resolve.register_endpoint(f"RR={server.url}/rerank#batch=5")
    collection = rankings.collection_of(datasets.read(twelve))
    setup = rankings.RankingSetup(collection, first_stage=resolve.resolve("BM25"))
    assert rankings.job(own_service, reranker, setup).quote() == (
        "PosLens will send RR: at most 144 texts in 36 requests (up to 12 documents for each "
        "query); BM25 selects them first."
    )
    asked = ["rank", "--endpoint", f"RR={server.url}/rerank#batch=5", "--model", "RR"]
    done = CliRunner().invoke(app, [*asked, "--dataset", twelve])
    assert done.exit_code == 0, done.stderr
    found = [one["documents"] for one in server.requests if one["query"] != endpoint_client.PROBE]
    _, _, announced = done.stderr.partition("PosLens will send RR: ")
    n_texts, n_requests = int(announced.split()[0]), len(found) - 2  # two requests are its check
    assert n_texts == sum(map(len, found[2:])) and f"{n_requests} requests." in announced
    assert done.stderr.index("BM25: ") < done.stderr.index("PosLens will send RR: ")


def test_chunks_behind_an_endpoint_are_windows_of_words(
    server: EndpointServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, compute = resolve.register_endpoint(f"E5={server.url}"), Compute(tmp_path)
    collection = datasets.from_pairs(DataSet("set", "set", Pairs(pair(n) for n in range(12))))
    corpus = ChunkCorpus(collection, settings_of((8,), (0,), titled=False), ())
    subject = Asked(spec, corpus, CHUNKS.parameters.settings({"top": 2}))
    job = CHUNKS.job(compute, subject)
    compute.retriever(compute.identify(spec))
    server.requests.clear()
    # Too little time to count: estimated from the lengths in words.
    monkeypatch.setattr(costs, "MOST_S", 0.0)
    cost = job.cost()
    assert cost is not None and cost.bound == "about" and not server.requests
    assert CHUNKS.estimate(compute, subject) == ""
    assert finished(job) == ""
    n_texts, n_tokens, _ = asked_of(server)
    assert cost.texts == pytest.approx(n_texts, rel=0.2)
    assert cost.tokens == pytest.approx(n_tokens, rel=0.2)
    done = CHUNKS.summarize(compute, subject)
    assert done is not None and list(done.left_out) == ["late:8"]
    whole, windows = done.tried
    # Endpoints don't state a context limit, and are not timed.
    assert set(whole.documents["p3"].cut.tolist()) == {-1} and whole.seconds is None
    assert set(windows.documents["p3"].cut.tolist()) == {1}
    (remark, words) = CHUNKS.remarks([done])
    assert "does not support late chunks" in remark
    assert words == (
        "E5 doesn't show its tokens, so its windows count words and punctuation marks: "
        "choose a splitter that counts both."
    )


def test_the_key_is_not_in_any_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(key_name("E5"), "sk-very-secret")
    caplog.set_level(logging.DEBUG)
    with running(hashed, key="sk-very-secret") as server:
        spec, compute = resolve.register_endpoint(f"E5={server.url}"), Compute(tmp_path)
        result = compute.explain(PAIRS[0], spec, SENTENCE)
        assert finished(interventions.job(compute, spec, relocation_method(), PAIRS, "x")) == ""
        job = compute.attribution_job(spec, SENTENCE, PAIRS[:2], "some")
        server.key = "another"
        assert "rejects its key" in finished(job)
        assert "secret" not in repr([result, job, result.provenance(), compute.identify(spec)])
    frame = attribution_frame(result.attribution, PAIRS[0])
    for kind in ("csv", "json", "parquet"):
        table = table_bytes(frame, kind, [result.provenance()])  # type: ignore[arg-type]
        (tmp_path / f"table.{kind}").write_bytes(table)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 6
    assert not [path for path in files if b"secret" in path.read_bytes()]
    assert "secret" not in caplog.text


def test_a_command_states_what_it_sends_and_why_a_method_does_not_fit(
    server: EndpointServer,
) -> None:
    asked = ["explain", "--endpoint", f"E5={server.url}", "--model", "E5", "--query", "tide"]
    text = ["--document", "The tide turns at six. Fog is grey."]
    done = CliRunner().invoke(app, [*asked, *text, "--method", "occlusion"])
    assert done.exit_code == 0 and json.loads(done.stdout)["model"] == "E5"
    # The document without each of its eight words, the query, the query without its word, both in
    # full, and the score: a text that is needed twice is sent once.
    assert "PosLens will send E5: 13 texts" in done.stderr
    unfit = CliRunner().invoke(app, [*asked, *text, "--method", "saliency"])
    assert (
        unfit.exit_code == 2
        and "saliency is unavailable for E5: an endpoint returns" in unfit.stderr
    )
    bad = CliRunner().invoke(app, ["rank", "--endpoint", "E5=ftp://a"])
    assert (
        bad.exit_code == 2 and bad.stderr.startswith("E5 has no valid address") and not bad.stdout
    )
