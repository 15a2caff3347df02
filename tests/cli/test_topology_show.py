"""The topology of an app is shown as text, as graphs and as JSON, and hostile names stay names."""

import json
import re

import pytest
from cli_stage import carom
from hypothesis import given, settings
from hypothesis import strategies as st

from carom import App, RetryPolicy
from carom.cli.definitions import read, written
from carom.cli.graphs import dot, graph, mermaid
from carom.cli.picture import picture
from carom.core.topology import Binding, Exchange, Queue, Topology, arguments
from carom.errors import ConfigurationError

SHOP = """
from carom import App, RetryPolicy
app = App("amqp://user:secret@nowhere/", name="till", exchange="shop", namespace="shop", delays=("1h",))

@app.listen("order.created", "order.#", queue="shop.charge", retry=("2s", "5s"), timeout="10s")
async def charge(order: dict) -> None: ...

@app.listen(queue="shop.mail", retry=RetryPolicy.custom(lambda attempt, error: 1, attempts=3), batch=10)
def mail(orders: list[dict]) -> None: ...

@app.listen("audit", queue="shop.audit", retry=RetryPolicy.delays(jitter=0.1))
def audit(order: dict) -> None: ...
"""


@pytest.fixture
def shown(tmp_path):
    (tmp_path / "topology_shop.py").write_text(SHOP)

    def show(*arguments, **variables):
        return carom("topology", "show", "topology_shop:app", "--app-dir", str(tmp_path), *arguments, **variables)

    return show


def test_text_tells_what_listens_and_what_becomes_of_failures(shown):
    found = shown()
    assert found.exit_code == 0
    for line in (
        "till: layout shared, exchange shop, namespace shop",
        "  shop ── order.created ──▶ shop.charge ──▶ charge",
        "  shop ── order.#       ──▶ shop.charge ──▶ charge",
        "      a failure waits 2s in shop.delay.2s, and comes back",
        "      the last failure ends in shop.charge.dlq",
        "  16 at once, prefetch 64, timeout 10s, crash limit 5",
        "  shop.mail ──▶ mail   (bound to nothing)",
    ):
        assert line in found.stdout.splitlines()
    assert "batches of 10" in found.stdout
    assert "| 3 (2nd retry) | 5s " in found.stdout
    assert "secret" not in found.output


def test_a_listener_is_shown_with_the_delays_it_can_ask_for_and_no_others(shown):
    charge, mail, audit = (part.partition("exchanges")[0] for part in re.split(r"\n\nshop\.", shown().stdout)[1:])
    assert re.findall(r"waits +(\w+) in", charge) == ["2s", "5s"]
    assert len(re.findall(r"waits +(\w+) in", mail)) > 2  # its function may ask for anything
    assert "waits" not in audit


def test_nothing_is_coloured_or_cut_where_it_is_piped(shown):
    found = shown(COLUMNS="20")
    assert "\x1b" not in found.stdout
    assert "…" not in found.stdout
    assert "Jitter" in found.stdout
    assert all(line == line.rstrip() for line in found.stdout.splitlines())


def test_json_is_complete_and_read_back_as_the_same_topology(shown):
    value = json.loads(shown("--json").stdout)
    assert value == json.loads(shown("--format", "json").stdout)
    assert value["schema"] == 1
    topology = read(value["topology"])
    assert topology.queue("shop.charge").dead_letter_key == "shop.charge"
    assert written(topology) == value["topology"]
    charge = value["listeners"][0]
    assert (charge["queue"], charge["keys"], charge["timeout_ms"]) == (
        "shop.charge",
        ["order.created", "order.#"],
        10_000,
    )
    assert [step["elapsed_ms"] for step in charge["retry"]["schedule"]] == [0, 2000, 7000]


def test_another_layout_is_shown_without_changing_the_app(shown):
    value = json.loads(shown("--json", "--layout", "per_queue").stdout)
    assert value["layout"] == "per_queue"
    assert "shop.charge.delay_2s" in [queue["name"] for queue in value["topology"]["queues"]]
    assert "shop.charge.delay_2s, and comes back" in shown(CAROM_LAYOUT="per_queue").stdout


@pytest.mark.parametrize("layout", ["shared", "per_queue"])
def test_what_is_shown_is_what_the_app_declares_also_what_is_not_a_listener_s(shown, layout):
    value = json.loads(shown("--json", "--layout", layout).stdout)
    app = App(name="till", exchange="shop", namespace="shop", delays=("1h",), layout=layout)
    app.listen("order.created", "order.#", queue="shop.charge", retry=("2s", "5s"))(lambda order: None)
    app.listen(queue="shop.mail", retry=RetryPolicy.custom(lambda attempt, error: 1, attempts=3))(lambda order: None)
    app.listen("audit", queue="shop.audit", retry=None)(lambda order: None)
    assert read(value["topology"]) == app.topology


def test_a_layout_that_does_not_exist_is_a_configuration_error(shown):
    found = shown("--layout", "spiral")
    assert found.exit_code == 78
    assert "no layout is called 'spiral'" in found.stderr


def test_an_app_without_listeners_is_shown_too(tmp_path):
    (tmp_path / "topology_empty.py").write_text("from carom import App\napp = App()\n")
    found = carom("topology", "show", "topology_empty:app", "--app-dir", str(tmp_path))
    assert found.exit_code == 0
    assert "events" in found.stdout


# -- graphs, whatever the names are

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12) | st.sampled_from(
    [
        "end",
        'a"]; b-->c',
        "<script>alert(1)</script>",
        "subgraph x",
        "`md`",
        "%%{init}%%",
        "\\",
        "a\nb",
        "#quot;",
        "|x|",
    ]
)
NODE = r"    [eq]\d+(\(\[|\[/|\[)\"[A-Za-z0-9_. ,()=*#;-]*\"(\]\)|/\]|\])"
EDGE = r"    [eq]\d+ (-->|-\.->)(\|\"[A-Za-z0-9_. ,()=*#;-]+\"\|)? [eq]\d+"
DOT_TEXT = r'"(?:[^"\\\n]|\\["\\])*"'
DOT_LINE = (
    rf"    (?:[eq]\d+ \[shape=\w+, label={DOT_TEXT}\]|[eq]\d+ -> [eq]\d+ \[label={DOT_TEXT}(?:, style=dashed)?\]);"
)


@st.composite
def topologies(draw):
    exchanges = draw(st.lists(NAMES, unique=True, max_size=3))
    queues = draw(st.lists(NAMES, unique=True, max_size=3))
    anywhere = st.sampled_from([*exchanges, "", "elsewhere"])
    made = []
    for name in queues:
        ttl, dead, key = draw(st.none() | st.integers(0, 9)), draw(st.none() | anywhere), draw(st.none() | NAMES)
        options = {"x-message-ttl": ttl, "x-dead-letter-exchange": dead, "x-dead-letter-routing-key": key}
        made.append(Queue(name, draw(st.booleans()), arguments(options)))
    bindings = st.builds(
        Binding,
        anywhere,
        st.sampled_from([*exchanges, *queues, "nowhere"]),
        NAMES | st.just(""),
        st.sampled_from(["queue", "exchange"]),
        st.just(()) | st.just((("x-match", "all"),)),
    )
    kinds = st.sampled_from(["direct", "topic", "fanout", "headers"])
    return Topology(
        tuple(
            Exchange(name, draw(kinds), draw(st.booleans()), draw(st.booleans()), draw(st.none() | anywhere))
            for name in exchanges
        ),
        tuple(made),
        tuple(draw(st.lists(bindings, max_size=4))),
    )


@given(topologies())
@settings(max_examples=60)
def test_a_mermaid_graph_is_well_formed_whatever_the_names_are(topology):
    head, *lines = mermaid(topology).split("\n")
    assert head == "flowchart LR"
    assert all(re.fullmatch(f"{NODE}|{EDGE}", line) for line in lines), lines


@given(topologies())
@settings(max_examples=60)
def test_a_dot_graph_is_well_formed_whatever_the_names_are(topology):
    head, _, _, *lines, tail = dot(topology).split("\n")
    assert (head, tail) == ("digraph topology {", "}")
    assert all(re.fullmatch(DOT_LINE, line) for line in lines), lines


@given(topologies())
@settings(max_examples=60)
def test_every_edge_of_a_graph_is_between_nodes_that_are_in_it(topology):
    drawn = graph(topology)
    nodes = {node.id for node in drawn.nodes}
    assert len(nodes) == len(topology.exchanges) + len(topology.queues)
    assert all({edge.source, edge.target} <= nodes for edge in drawn.edges)


@given(topologies())
@settings(max_examples=60)
def test_what_is_written_is_read_back_as_the_same(topology):
    value = json.loads(json.dumps(written(topology)))
    again = read(value)
    assert again == topology
    assert [one.public for one in again.exchanges] == [one.public for one in topology.exchanges]


def test_what_is_no_topology_is_refused():
    with pytest.raises(ConfigurationError, match="no topology"):
        read({"exchanges": [], "queues": [{"name": 1}], "bindings": []})


def test_a_graph_shows_the_way_of_a_retry(shown):
    found = shown("--format", "mermaid").stdout
    assert '(["shop (topic)"])' in found
    assert '[/"shop.delay.2s (waits 2s)"/]' in found
    assert '-.->|"after 2s"|' in found
    assert '-->|"order.#35;"|' in found
    assert "digraph" in shown("--format", "dot").stdout


def test_hostile_names_are_escaped_in_the_picture():
    app = App(name="a\x1b]0;b", exchange="x\u202ey", namespace="n\nm")

    @app.listen("k\x07", queue="q\r", retry=RetryPolicy.fixed("1s", attempts=2))
    def handler(order: dict) -> None: ...

    found = picture(app, "shared", app.layout)
    plain = re.sub(r"\x1b\[\d+m", "", found)
    assert all(line.isprintable() for line in plain.split("\n"))
    assert "k\\x07" in plain
    assert "q\\r.dlq" in plain


# -- layouts with any delay, and those of other systems

ANY = """
from carom import App, RetryPolicy
from carom import layouts

app = App("embedded://", name="till", exchange="shop", namespace="shop", layout="auto")
app.listen("order.*", queue="shop.charge", retry={retry})(lambda order: None)
"""
OPEN_ENDED = "RetryPolicy.custom(lambda attempt, error: attempt, attempts=4)"


@pytest.mark.parametrize("layout", ["binary", "goqueue", "kbairak", "freeflow", "wait_queue", "native"])
@pytest.mark.parametrize("form", ["text", "mermaid", "dot", "json"])
def test_every_form_shows_a_layout_however_many_delays_it_has(tmp_path, layout, form):
    retry = 'RetryPolicy.fixed("30s", attempts=3)' if layout == "wait_queue" else OPEN_ENDED
    (tmp_path / f"any_{layout}.py").write_text(ANY.format(retry=retry))
    found = carom(
        "topology", "show", f"any_{layout}:app", "--layout", layout, "--format", form, "--app-dir", str(tmp_path)
    )
    assert found.exit_code == 0, found.output
    assert "shop.charge" in found.stdout
    assert len(found.stdout.splitlines()) < 700


@pytest.mark.parametrize("layout", ["binary", "goqueue"])
def test_a_layout_with_any_delay_is_exported_granted_applied_and_examined(tmp_path, layout):
    program = ANY.format(retry=OPEN_ENDED).replace("embedded://", f"embedded:///{tmp_path}/shop.db")
    (tmp_path / f"some_{layout}.py").write_text(program.replace('"auto"', repr(layout)))
    app, where = f"some_{layout}:app", ("--app-dir", str(tmp_path))
    assert carom("topology", "export", app, *where).exit_code == 0
    for role in ("admin", "publisher", "worker", "console"):
        assert carom("topology", "grants", app, "--role", role, *where).exit_code == 0
    assert carom("topology", "plan", app, *where).exit_code == 5
    assert carom("topology", "apply", app, *where).exit_code == 0
    assert carom("topology", "plan", app, *where).exit_code == 0
    assert carom("doctor", app, *where).exit_code == (5 if layout == "goqueue" else 0)
