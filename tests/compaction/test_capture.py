"""What one run of a model leaves on record."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.compaction.capture import capture
from diffsparse.compaction.rules import OPAQUE
from tests.compaction.tiny import X, node_of, recorded, tiny


def test_nodes_know_their_module_and_calls_their_place() -> None:
    model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), nn.Conv2d(4, 2, 1)).double()
    graph = recorded(model)
    assert [(node.op, node.call.name) for node in graph.nodes if node.call] == [
        ("conv2d", "0.0"),
        ("relu", "0.1"),
        ("conv2d", "1"),
    ]
    assert [call.name for call in graph.calls] == ["", "0", "0.0", "0.1", "1"]
    inner = graph.calls[2]
    assert [inner.name, inner.parent.name, inner.parent.parent.name] == ["0.0", "0", ""]
    assert inner.parent.parent.parent is None
    assert (graph.calls[1].first_node, graph.calls[1].last_node) == (0, 2)


def test_parameters_are_recognised_whoever_uses_them() -> None:
    class Direct(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Conv2d(3, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, self.inner.weight)

    node = node_of(recorded(Direct().double()), "conv2d")
    assert [value.parameter for value in node.inputs] == [None, "inner.weight"]


def test_the_model_is_left_without_hooks_even_when_it_fails() -> None:
    model = tiny()
    with pytest.raises(RuntimeError):
        capture(model, (torch.zeros(1, 5, 2, 2).double(),), {})
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_hooks_of_the_user_run_and_what_they_do_is_recorded() -> None:
    model = tiny()
    model.conv.register_forward_hook(lambda module, args, output: output.tanh())
    graph = recorded(model)
    (call,) = [call for call in graph.calls if call.name == "conv"]
    assert call.output is node_of(graph, "tanh").output


@pytest.mark.parametrize("read", [float, Tensor.item, Tensor.tolist, bool, lambda t: t.numpy()])
def test_handing_data_to_python_is_a_node_without_output(read: object) -> None:
    def between(y: Tensor) -> Tensor:
        read(y.sum())  # type: ignore[operator]
        return y

    graph = recorded(tiny(between))
    (reader,) = [node for node in graph.nodes if not node.outputs]
    assert reader.inputs == [node_of(graph, "sum").output]


def test_sizes_are_not_data() -> None:
    graph = recorded(tiny(lambda y: y.view(y.shape[0], y.size(1), *y.shape[2:])))
    assert all(node.outputs for node in graph.nodes)


def test_iteration_is_an_unbind() -> None:
    graph = recorded(tiny(lambda y: torch.stack(list(y))))
    assert len(node_of(graph, "unbind").outputs) == 2


def test_what_does_not_depend_on_the_input_is_known_unless_made_at_random() -> None:
    class Offset(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.ones(8, 1, 1).double())

        def forward(self, x: Tensor) -> Tensor:
            return x + self.a.exp() + torch.rand_like(self.a)

    graph = recorded(tiny(Offset()))
    assert node_of(graph, "exp").output.known
    assert not node_of(graph, "exp").output.depends_on_input
    assert not node_of(graph, "rand_like").output.known


def test_writing_to_a_view_forgets_the_tensor_behind_it() -> None:
    def between(y: Tensor) -> Tensor:
        y = y.clone()
        y.flatten(2).add_(1.0)
        return y

    graph = recorded(tiny(between, dead=[0]))
    assert graph.nodes[-1].op == "conv2d"
    assert graph.nodes[-1].inputs[0].axis is None


def test_writing_to_memory_that_a_buffer_shares_is_not_described() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.ones(8, 4, dtype=torch.float64))

        def forward(self, y: Tensor) -> Tensor:
            self.table.view(-1).add_(1.0)
            return y * self.table[:, :1].unsqueeze(-1)

    graph = recorded(tiny(Counting()))
    written = node_of(graph, "add")
    assert written.rule is OPAQUE
    assert node_of(graph, "unsqueeze").inputs[0].parameter is None


def test_an_operation_that_hands_its_argument_back_makes_an_equal_value() -> None:
    graph = recorded(tiny(lambda y: y.contiguous().float().double()))
    handed = node_of(graph, "contiguous")
    assert handed.output is not handed.inputs[0]
    assert handed.output.origin is handed.inputs[0]


def test_arguments_in_collections_are_inputs_and_the_rest_stays() -> None:
    graph = recorded(tiny(lambda y: torch.cat([y, 2 * y], dim=1), head=16))
    node = node_of(graph, "cat")
    assert list(node.args[0]) == node.inputs
    assert node.kwargs == {"dim": 1}
    conv = next(node for node in graph.nodes if node.op == "conv2d")
    assert conv.args[3:] == ((1, 1), (0, 0), (1, 1), 1)


def test_results_are_the_tensors_returned_and_the_output_is_passed_on() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"a": x.exp(), "b": x}

    graph, output = capture(Two(), (X,), {})
    assert [value.depends_on_input for value in graph.results] == [True, True]
    assert torch.equal(output["a"], X.exp())


def test_keyword_arguments_are_inputs() -> None:
    graph, _ = capture(tiny(), (), {"x": X})
    assert graph.nodes[0].inputs[0].depends_on_input
    assert not graph.results[0].known


def test_no_hook_is_left_behind() -> None:
    import torch.nn.modules.module as hooks

    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval()
    model[0].register_forward_hook(lambda *_: None)
    capture(model, (torch.zeros(1, 2),), {})
    assert not hooks._global_forward_hooks
    assert not hooks._global_forward_pre_hooks
    assert not hooks._global_forward_hooks_with_kwargs
    assert len(model[0]._forward_hooks) == 1
