"""PyTorch's own ways with a model: wrappers, compilers, quantisation, functional calls, pruning, hooks and copies."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import prune

from compat.hub_cases import CLASSES, FIVE, inputs, labels, settings
from parity.oracle import check_same, difference, pair

NAME = "BertForSequenceClassification"
BATCH = inputs(NAME, 3, 7)
TARGETS = labels(NAME, 3, 7)
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def check_distributed(*launcher: str) -> None:
    script = Path(__file__).with_name("distributed_run.py")
    paths = {"PYTHONPATH": os.pathsep.join(map(str, sys.path)), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, *launcher, str(script)], capture_output=True, text=True, timeout=570, env=os.environ | paths
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found.keys() == {"ddp", "fsdp", "fsdp2"}
    assert max(found.values()) <= 1e-5, found


def test_ddp_and_both_fsdps_train_alike() -> None:
    check_distributed()


@pytest.mark.slow
def test_ddp_and_both_fsdps_train_alike_in_two_processes() -> None:
    check_distributed("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["BertModel", "BertForMaskedLM"])
def test_compiled_models_answer_and_train_alike(name: str, backend: str) -> None:
    theirs, ours = pair(name, attention="sdpa")
    torch._dynamo.reset()
    compiled = torch.compile(ours, backend=backend)
    for batch, length in ((3, 7), (2, 9)):
        given = inputs(name, batch, length)
        check_same(theirs(**given).to_tuple(), compiled(**given).to_tuple())
    given |= labels(name, 2, 9)
    for model in (theirs, compiled):
        output = model(**given)
        (output.loss if name != "BertModel" else output[0].square().mean()).backward()
    for (key, wanted), got in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        if wanted.grad is not None:
            assert difference(wanted.grad, got.grad) <= 1e-5, key


@pytest.mark.skipif(FIVE, reason="transformers 5 has no fx any more; torch.export gives such graphs")
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("kind", ["absolute", "relative_key_query"])
def test_fx_traces_symbolically_and_the_graph_takes_other_shapes(kind: str, name: str) -> None:
    from transformers.utils.fx import symbolic_trace

    graphs = []
    for model in pair(name, attention="sdpa", position_embedding_type=kind, **settings(name)):
        graph = symbolic_trace(model, input_names=["input_ids", "attention_mask", "token_type_ids"])
        assert "scaled_dot_product_attention" in graph.code or kind != "absolute"
        graphs.append(graph)
    for batch, length in ((3, 7), (2, 9)):
        given = inputs(name, batch, length)
        theirs, ours = (graph(**given) for graph in graphs)
        assert theirs.keys() == ours.keys()
        for field in theirs:
            assert difference(theirs[field], ours[field]) <= 1e-5
    # A graph is there to be changed: every GELU becomes a ReLU, whatever it was called.
    changed = []
    for graph in graphs:
        for node in graph.graph.nodes:
            if "gelu" in str(node.target).lower() or "act_fn" in str(node.target):
                node.op, node.target = "call_function", torch.relu
                node.kwargs = {}
        graph.recompile()
        changed.append(next(iter(graph(**given).values())))
    assert difference(*changed) <= 1e-5
    assert difference(changed[0], next(iter(theirs.values()))) > 1e-3


@pytest.mark.slow
def test_inductor_compiles_a_whole_model_alike() -> None:
    theirs, ours = pair(NAME, attention="sdpa")
    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True)
    check_same(theirs(**BATCH, **TARGETS).to_tuple(), compiled(**BATCH, **TARGETS).to_tuple())


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("name", CLASSES)
def test_dynamically_quantised_models_answer_alike(name: str) -> None:
    quantised = [
        torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
        for model in pair(name, attention="sdpa", **settings(name))
    ]
    theirs, ours = (model(**inputs(name, 3, 7)).to_tuple() for model in quantised)
    assert difference(theirs, ours) <= 1e-4


@pytest.mark.skipif(FIVE, reason="transformers 5 looks into masks, which vmap forbids")
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_functional_calls_gradients_per_text_and_jacobians() -> None:
    found = []
    for model in pair(NAME, attention="eager"):  # with sdpa transformers looks into the mask, which vmap forbids
        weights = dict(model.named_parameters())

        def loss(weights: Any, ids: Any, mask: Any, label: Any, model: Any = model) -> torch.Tensor:
            given = {"attention_mask": mask[None], "labels": label[None]}
            return torch.func.functional_call(model, weights, (ids[None],), given)["loss"]

        texts = (BATCH["input_ids"], BATCH["attention_mask"], TARGETS["labels"])
        one = torch.func.grad(loss)(weights, *(column[0] for column in texts))
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0, 0))(weights, *texts)
        assert difference(each["classifier.weight"][0], one["classifier.weight"]) <= 1e-5
        embeddings = model.get_input_embeddings()(BATCH["input_ids"])
        slopes = torch.func.jacrev(lambda given, model=model: model(inputs_embeds=given).logits.sum(0))(embeddings)
        found.append((each, slopes.detach()))
    assert found[0][0].keys() == found[1][0].keys()
    assert max(difference(found[0][0][key], found[1][0][key]) for key in found[0][0]) <= 1e-5
    assert difference(found[0][1], found[1][1]) <= 1e-5


def test_pruned_weights_answer_alike_and_become_permanent() -> None:
    answers = []
    for model in pair("BertModel", attention="sdpa"):
        parts = [(layer.intermediate.dense, "weight") for layer in model.encoder.layer]
        prune.global_unstructured(parts, pruning_method=prune.L1Unstructured, amount=0.5)
        before = model(**BATCH)[0].detach()
        for module, name in parts:
            prune.remove(module, name)
        assert difference(model(**BATCH)[0], before) == 0
        answers.append(before)
    assert difference(*answers) <= 1e-5


def test_hooks_see_and_change_the_same_tensors() -> None:
    found = []
    for model in pair("BertModel", attention="sdpa"):
        seen: dict[str, Any] = {}
        for name, module in model.named_modules():
            if name.endswith("_act_fn"):
                continue  # a module there, a function here; the module around it has the same output
            if "layer.1" in name or "embeddings" in name:

                def keep(module: Any, given: Any, output: Any, name: str = name, seen: Any = seen) -> None:
                    seen[name] = output[0] if isinstance(output, tuple) else output

                module.register_forward_hook(keep)

        def double(module: Any, given: Any, output: Any) -> Any:
            return (output[0] * 2, *output[1:]) if isinstance(output, tuple) else output * 2

        model.encoder.layer[0].attention.output.register_forward_hook(double)
        gradients: list[torch.Tensor] = []
        model.pooler.register_full_backward_hook(lambda module, into, out, g=gradients: g.append(out[0]))
        model(**BATCH).pooler_output.square().sum().backward()
        found.append((seen, gradients))
    assert found[0][0].keys() == found[1][0].keys()
    for name in found[0][0]:
        assert difference(found[0][0][name], found[1][0][name]) <= 1e-5, name
    assert difference(found[0][1], found[1][1]) <= 1e-4


def saved_whole(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), saved_whole])
def test_whole_models_are_copied_and_pickled(way: Any, name: str) -> None:
    theirs, ours = pair(name, attention="sdpa", **settings(name))
    again = way(ours)
    assert again.config == ours.config
    assert len(list(again.parameters())) == len(list(ours.parameters()))  # what is tied stays tied
    check_same(theirs(**inputs(name, 3, 7)), again(**inputs(name, 3, 7)))


def test_averaged_weights_and_ema_are_the_same() -> None:
    answers = []
    for model in pair(NAME, attention="sdpa"):
        ema = torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
        averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=ema)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(**BATCH, **TARGETS).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            averaged.update_parameters(model)
        answers.append(averaged(**BATCH).logits.detach())
    assert difference(*answers) <= 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_answers_and_trains_alike(dtype: torch.dtype) -> None:
    answers = []
    for model in pair(NAME, attention="sdpa"):
        with torch.autocast("cpu", dtype=dtype):
            output = model(**BATCH, **TARGETS)
            output.loss.backward()
        answers.append(output.logits.float())
    assert difference(*answers) <= 3e-2


def test_parametrised_weights_and_spectral_norm() -> None:
    answers = []
    for model in pair(NAME, attention="sdpa"):
        torch.manual_seed(3)
        torch.nn.utils.parametrizations.spectral_norm(model.classifier)
        torch.nn.utils.parametrizations.weight_norm(model.bert.pooler.dense)
        answers.append(model.eval()(**BATCH).logits.detach())
    assert difference(*answers) <= 1e-5
