from __future__ import annotations

import concurrent.futures

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carom.core.classify import FRAMES, RELATED, Classification, classify, describe, headline, leaves, named, strictest
from carom.core.message import ERROR_LIMIT, ERROR_TYPE_LIMIT, TRACE_LIMIT
from carom.errors import BrokerUnavailable, DecodeError, NotConfirmed, Reject, SignatureError

T, U, P = Classification.TRANSIENT, Classification.UNKNOWN, Classification.PERMANENT


class RateLimited(ConnectionError):
    pass


class Outer:
    class Inner(Exception):
        pass


def raised(error: BaseException) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionResetError(), T),
        (TimeoutError(), T),
        (concurrent.futures.TimeoutError(), T),
        (InterruptedError(), T),
        (BlockingIOError(), T),
        (BrokerUnavailable(), T),
        (NotConfirmed("no answer"), T),
        (DecodeError(), P),
        (SignatureError(), P),
        (NotImplementedError(), P),
        (Reject("no"), P),
        (ValueError(), U),
        (OSError(), U),
        (TypeError(), U),
        (KeyboardInterrupt(), U),
    ],
)
def test_errors_have_a_default_classification(error, expected):
    assert classify(error) is expected


def test_a_list_beats_the_defaults():
    assert classify(ConnectionResetError(), permanent=[ConnectionError]) is P
    assert classify(DecodeError(), transient=[Exception]) is T


def test_the_most_specific_class_wins_between_the_lists():
    assert classify(KeyError(), permanent=[LookupError], transient=[KeyError]) is T
    assert classify(KeyError(), permanent=[KeyError], transient=[LookupError]) is P
    assert classify(IndexError(), permanent=[KeyError], transient=[LookupError]) is T
    assert classify(RateLimited(), permanent=[OSError], transient=[Exception]) is P


def test_a_tie_is_permanent():
    assert classify(KeyError(), permanent=[KeyError], transient=[KeyError]) is P


def test_lists_may_be_iterators():
    group = ExceptionGroup("both", [KeyError(), KeyError()])
    assert classify(group, permanent=iter([ValueError]), transient=iter([KeyError])) is T


def test_causes_are_not_looked_at():
    error = ValueError("because of the network")
    error.__cause__ = ConnectionError()
    assert classify(error) is U


def test_the_strictest_leaf_of_a_group_decides():
    assert classify(ExceptionGroup("g", [ConnectionError(), TimeoutError()])) is T
    assert classify(ExceptionGroup("g", [ConnectionError(), ValueError()])) is U
    assert classify(BaseExceptionGroup("g", [ValueError(), ExceptionGroup("h", [DecodeError(), TimeoutError()])])) is P


def test_nothing_at_all_is_unknown():
    assert strictest([]) is U


@given(st.lists(st.sampled_from([ConnectionError(), ValueError(), DecodeError()]), min_size=1), st.integers(0, 4))
@settings(max_examples=60)
def test_a_group_is_as_strict_as_its_strictest_leaf_however_nested(errors, depth):
    group: BaseException = ExceptionGroup("g", errors)
    for _ in range(depth):
        group = ExceptionGroup("g", [group])
    assert classify(group) is strictest(classify(error) for error in errors)


def test_leaves_come_once_each_and_in_order():
    first, second, third = ValueError("1"), KeyError("2"), OSError("3")
    inner = ExceptionGroup("inner", [second, first])
    assert leaves(ExceptionGroup("outer", [first, inner, inner, third])) == (first, second, third)
    assert leaves(first) == (first,)


def test_a_group_shared_in_itself_many_times_costs_no_more_than_its_objects():
    group = ExceptionGroup("g", [ValueError()])
    for _ in range(60):  # 2 to the power of 60 paths lead to the leaf
        group = ExceptionGroup("g", [group, group])
    assert len(leaves(group)) == 1


def test_a_group_nested_beyond_the_recursion_limit_has_its_leaf():
    group = ExceptionGroup("g", [DecodeError()])
    for _ in range(5_000):
        group = ExceptionGroup("g", [group])
    assert classify(group) is P
    assert describe(group).type == "ExceptionGroup"


def test_a_group_that_lies_about_its_members_is_not_believed():
    class Liar(ExceptionGroup):
        exceptions = property(lambda self: 1 / 0)

    assert classify(Liar("g", [DecodeError()])) is P


def test_a_description_has_the_qualified_type_the_text_and_the_trace():
    description = describe(raised(Outer.Inner("no such account")))
    assert description.type == f"{__name__}.Outer.Inner"
    assert description.text == "no such account"
    lines = description.trace.splitlines()
    assert lines[0].startswith(f'  File "{__file__}", line ')
    assert lines[0].endswith(", in raised")
    assert lines[1] == "    raise error"
    assert lines[2:] == [f"{__name__}.Outer.Inner: no such account"]


def test_a_built_in_type_has_no_module():
    assert named(ValueError()) == "ValueError"
    assert headline(ValueError()) == "ValueError"
    assert describe(ValueError()).trace == "ValueError"


def test_a_frame_without_source_is_still_named():
    code = compile("def fails():\n    raise KeyError('x')\nfails()", "<no such file>", "exec")
    with pytest.raises(KeyError) as caught:
        exec(code, {})  # noqa: S102 - our own three lines, compiled under a name no file has
    assert describe(caught.value).trace.endswith(
        '  File "<no such file>", line 3, in <module>\n  File "<no such file>", line 2, in fails\nKeyError: \'x\''
    )


def test_what_led_to_an_error_comes_before_it():
    first, second, third = raised(KeyError("first")), raised(ValueError("second")), raised(OSError("third"))
    second.__cause__, third.__context__ = first, second
    trace = describe(third).trace
    parts = ("KeyError: 'first'", "It caused this error:", "ValueError: second", "While it was", "OSError: third")
    places = [trace.index(part) for part in parts]
    assert places == sorted(places)


def test_a_suppressed_context_is_left_out():
    error = raised(ValueError("plain"))
    error.__context__, error.__suppress_context__ = KeyError("secret"), True
    assert "secret" not in describe(error).trace


def test_the_errors_in_a_group_are_in_its_trace():
    trace = describe(raised(ExceptionGroup("g", [raised(KeyError("one")), raised(OSError("two"))]))).trace
    assert trace.index("KeyError: 'one'") < trace.index("OSError: two") < trace.index("ExceptionGroup: g (2 sub")


def test_a_chain_without_end_is_cut():
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    assert describe(first).trace.count("It caused this error:") == RELATED


def test_of_a_deep_recursion_the_innermost_frames_are_kept():
    def sink(depth: int) -> None:
        if depth == 0:
            raise RecursionError("this is the bottom")
        sink(depth - 1)

    with pytest.raises(RecursionError) as caught:
        sink(400)
    description = describe(caught.value)
    assert 'raise RecursionError("this is the bottom")' in description.trace
    assert description.trace.count('  File "') == FRAMES
    assert description.trace.endswith("RecursionError: this is the bottom")


def test_a_long_trace_keeps_its_end_and_shows_that_it_was_cut():
    name = "a_function_" + "x" * 200
    namespace: dict = {}
    exec(f"def {name}(n):\n    if n == 0: raise ValueError('bottom')\n    {name}(n - 1)", namespace)  # noqa: S102 - long names
    error: BaseException = ValueError()
    for _ in range(3):
        with pytest.raises(ValueError, match="bottom") as caught:
            namespace[name](30)
        caught.value.__cause__ = error
        error = caught.value
    trace = describe(error).trace
    assert trace.startswith("…\n")
    assert trace.endswith("ValueError: bottom")
    assert TRACE_LIMIT - 600 < len(trace.encode()) <= TRACE_LIMIT


class Raises(Exception):
    def __str__(self):
        raise SystemExit("from __str__")


class Interrupts(Exception):
    def __str__(self):
        raise KeyboardInterrupt


class Garbage(Exception):
    def __str__(self):
        return 42  # noqa: PLE0307 - the point of it


class Strange(str):
    __slots__ = ()

    def encode(self, *args, **kwargs):
        raise RuntimeError("no bytes of me")

    def replace(self, *args, **kwargs):
        raise RuntimeError("no other text of me")

    __getitem__ = __len__ = encode


class SubclassText(Exception):
    def __str__(self):
        return Strange("strange")


class NoCause(Exception):
    @property
    def __cause__(self):
        raise MemoryError


class NoTraceback(Exception):
    __traceback__ = property(lambda self: "not a traceback")


class Nameless(type):
    @property
    def __module__(cls):
        raise ValueError("I come from nowhere")


class NoName(Exception, metaclass=Nameless):
    pass


@pytest.mark.parametrize("error", [Raises(), Interrupts(), Garbage()])
def test_an_error_that_cannot_say_its_text_is_described_all_the_same(error):
    description = describe(raised(error))
    assert description.type == named(error)
    assert description.text == "(an error that cannot say its text)"
    assert "in raised" in description.trace


def test_text_of_a_strange_kind_becomes_plain_text():
    text = describe(SubclassText()).text
    assert text == "strange"
    assert type(text) is str


def test_an_error_without_a_name_is_described_all_the_same():
    assert describe(NoName("text")).type == "an error whose class has no name"
    assert describe(NoName("text")).text == "text"


def test_an_error_that_hides_its_causes_or_traceback_is_described_all_the_same():
    assert describe(NoCause("why")).trace == f"(no trace can be had of this error)\n{__name__}.NoCause: why"
    assert describe(raised(NoTraceback("why"))).trace == f"{__name__}.NoTraceback: why"


def test_lone_surrogates_and_nul_are_written_out():
    description = describe(ValueError("a\ud800b\0c"))
    assert description.text == "a\\ud800b\\x00c"
    assert description.trace == "ValueError: a\\ud800b\\x00c"


def test_ten_megabytes_of_text_are_cut():
    description = describe(ValueError("é" * 10_000_000))
    assert description.text.endswith("…")
    assert ERROR_LIMIT - 4 < len(description.text.encode()) <= ERROR_LIMIT
    assert len(description.trace) < 400


def test_a_long_type_name_is_cut():
    error = type("X" * 10_000, (Exception,), {})()
    assert len(describe(error).type.encode()) <= ERROR_TYPE_LIMIT


@given(st.text(st.characters(codec=None)), st.text(st.characters(codec=None)))
@settings(max_examples=100)
def test_any_text_is_described_within_the_limits(text, cause):
    error = raised(ValueError(text * 50))
    error.__cause__ = raised(KeyError(cause))
    description = describe(error)
    for part, limit in ((description.text, ERROR_LIMIT), (description.trace, TRACE_LIMIT)):
        assert len(part.encode()) <= limit
        assert "\0" not in part
