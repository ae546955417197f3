"""Integrated Jacobians (Möller, Nikolaev and Padó 2023): shares of pairs of a query token and a
document token, from the Jacobians of both encoders averaged along straight paths from padding.

With e the vector whose inner product is the score, r_q and r_d the texts with padding in place of
every token, and J the averaged Jacobians, M_ij = <J_i (q_i - r_q,i), J_j (d_j - r_d,j)>. All M_ij
sum to s(q, d) - s(q, r_d) - s(r_q, d) + s(r_q, r_d).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.methods.base import MethodEntry, MethodParameter, register
from poslens.attribution.methods.integrated_gradients import steps_in_words
from poslens.attribution.methods.passes import distinct
from poslens.attribution.methods.perturbation import Varied
from poslens.attribution.retrievers.base import Pooled
from poslens.attribution.retrievers.family import Capability
from poslens.attribution.types import Attribution, Method, Side, TextPair

STEPS = (8, 16, 32, 64, 128, 256)
"""Numbers of steps that `auto` tries."""

DELTA = 1e-2
"""The completeness error, relative to what has to be distributed, at which `auto` stops."""


class _Path(Varied):
    """The straight path to one text, with the vectors [H] at its end and at its beginning."""

    def __init__(self, retriever: Pooled, text: str, side: Side) -> None:
        super().__init__(retriever, retriever.encode_texts([text], side))
        self.side = side
        with torch.no_grad():
            self.whole, self.empty = (
                retriever.directions(self.embed(end))[0] for end in (self.inputs, self.baseline)
            )

    @property
    def delta(self) -> Tensor:
        """Difference of the input embeddings at both ends [T, E]."""
        return (self.inputs - self.baseline)[0]

    @property
    def difference(self) -> Tensor:
        """Difference of the vectors at both ends [H]."""
        return self.whole - self.empty


def attribute(retriever: Pooled, method: Method, pairs: Sequence[TextPair]) -> list[Attribution]:
    """Each token's sum of M_ij over the other text and, with `matrix=yes`, the matrix. The sums
    alone need no matrix: all J_i (q_i - r_q,i) together are the difference of two vectors.

    The bias share consists of the three scores with a text of padding: values of either side plus
    the bias share are the score, up to the completeness error (of the matrix if there is one,
    otherwise of the document's values). `steps=auto` doubles the steps, up to 256, until the pair's
    error is small. Pairs that share a document share the passes along its path.

    Raises:
        UserError: the model's similarity is not an inner product, or a text has no tokens.
    """
    steps = str(method.params["steps"])
    numbers = STEPS if steps == "auto" else (int(steps),)
    with retriever.lock:
        queries, asked = distinct([pair.query for pair in pairs])
        documents, read = distinct([pair.document for pair in pairs])
        query_paths = [_Path(retriever, text, "query") for text in queries]
        paths = [_Path(retriever, text, "document") for text in documents]
        parts: dict[int, tuple[Tensor, Tensor, Tensor | None]]
        if method.params["matrix"] == "yes":
            vectors = [_token_vectors(retriever, path, numbers) for path in query_paths]
            matrices = _shared(retriever, paths, read, [vectors[at] for at in asked], numbers)
            parts = {n: (rows.sum(1), rows.sum(0), rows) for n, rows in matrices.items()}
        else:
            wholes = [query_paths[at].difference[None] for at in asked]
            of_documents = _shared(retriever, paths, read, wholes, numbers)
            wholes = [paths[at].difference[None] for at in read]
            of_queries = _shared(retriever, query_paths, asked, wholes, numbers)
            parts = {n: (of_queries[n][0], of_documents[n][0], None) for n in of_queries}
    results = []
    for number, pair in enumerate(pairs):
        query, document = query_paths[asked[number]], paths[read[number]]
        of_query, of_document, matrix = parts[number]
        bias = _dot(query.whole, document.empty) + _dot(query.empty, document.difference)
        score = _dot(query.whole, document.whole)
        results.append(
            Attribution(
                model=retriever.name,
                method=method,
                pair_id=pair.pair_id,
                score=score,
                query=query.encoded.texts[0],
                document=document.encoded.texts[0],
                query_scores=of_query[query.encoded.span(0)].float().cpu().numpy(),
                document_scores=of_document[document.encoded.span(0)].float().cpu().numpy(),
                matrix=None
                if matrix is None
                else matrix[query.encoded.span(0), document.encoded.span(0)].float().cpu().numpy(),
                bias_share=bias,
                completeness_error=score - bias - float(of_document.cpu().double().sum()),
            )
        )
    return results


def _shared(
    retriever: Pooled,
    paths: Sequence[_Path],
    places: Sequence[int],
    vectors: Sequence[Tensor],
    numbers: Sequence[int],
) -> dict[int, Tensor]:
    """For each pair, the products of its `vectors` [K, H] with each token's vector of the text at
    its place [K, T]; pairs with the same text share its passes. Each pair has the result of the
    first of the `numbers` of steps whose error is small for it, as if it were alone."""
    rows_of: dict[int, Tensor] = {}
    for at, path in enumerate(paths):
        left = [pair for pair, place in enumerate(places) if place == at]
        for n_steps in numbers:
            rows = _rows(retriever, path, torch.cat([vectors[pair] for pair in left]), n_steps)
            rows_of |= zip(left, rows.split([len(vectors[pair]) for pair in left]), strict=True)
            left = [pair for pair in left if not _complete(path, vectors[pair], rows_of[pair])]
            if not left:
                break
    return rows_of


def _complete(path: _Path, vectors: Tensor, rows: Tensor) -> bool:
    """Whether the sums of `rows` [K, T] are close to the products of `vectors` [K, H] with the
    difference of the vectors at both ends of the path."""
    exact = vectors @ path.difference.to(vectors.dtype)
    return bool((exact - rows.sum(1)).abs().sum() <= DELTA * exact.abs().sum())


def _dot(a: Tensor, b: Tensor) -> float:
    # On the CPU, because some devices have no float64.
    return float((a.cpu().double() * b.cpu().double()).sum())


def _integrate(
    retriever: Pooled,
    path: _Path,
    n_steps: int,
    total: Tensor,
    product: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> None:
    """Add the sum of `product` over the path to `total`, by Gauss-Legendre quadrature. Its
    arguments are some points of the path [S, T, E], their vectors [S, H] with the graph, and their
    weights [S]."""
    nodes, weights = np.polynomial.legendre.leggauss(n_steps)
    inputs = path.inputs
    at, weight = (
        torch.as_tensor(each / 2, dtype=inputs.dtype, device=inputs.device)
        for each in (nodes + 1, weights)
    )

    def add(some: list[int]) -> None:
        points = (path.baseline + at[some, None, None] * path.delta).requires_grad_()
        with torch.enable_grad():
            added = product(points, retriever.directions(path.embed(points)), weight[some])
        total.add_(added)  # last: an attempt that runs out of memory adds nothing

    doing = steps_in_words(path.side, n_steps)
    for _ in path.in_parts(add, range(n_steps), lambda share: checkpoint(share, doing)):
        pass


def _token_vectors(retriever: Pooled, path: _Path, numbers: Sequence[int]) -> Tensor:
    """Each token's vector J_i (x_i - r_i) [T, H]; they sum to the difference of the vectors at both
    ends. For any u, <u, J_i (x_i - r_i)> is linear in u, and its gradient is the vector."""
    difference = path.difference

    def product(points: Tensor, outputs: Tensor, weight: Tensor) -> Tensor:
        probe = torch.zeros_like(outputs).requires_grad_()
        (gradients,) = torch.autograd.grad(outputs, points, probe, create_graph=True)
        products = torch.einsum("ste,te,s->t", gradients, path.delta, weight)
        added = torch.zeros_like(vectors)
        for token in path.delta.any(-1).nonzero()[:, 0].tolist():
            checkpoint()
            (row,) = torch.autograd.grad(products[token], probe, retain_graph=True)
            added[token] = row.sum(0)
        return added

    for n_steps in numbers:
        vectors = difference.new_zeros(path.delta.shape[0], len(difference))
        # The fused kernels of attention have no second derivative.
        with sdpa_kernel(SDPBackend.MATH):
            _integrate(retriever, path, n_steps, vectors, product)
        error = torch.linalg.vector_norm(difference - vectors.sum(0))
        if error <= DELTA * torch.linalg.vector_norm(difference):
            break
    return vectors


def _rows(retriever: Pooled, path: _Path, vectors: Tensor, n_steps: int) -> Tensor:
    """Products of `vectors` [K, H] with each token's vector of one text [K, T]."""
    used = vectors.any(-1).nonzero()[:, 0].tolist()
    rows = vectors.new_zeros(len(vectors), path.delta.shape[0])

    def product(points: Tensor, outputs: Tensor, weight: Tensor) -> Tensor:
        added = torch.zeros_like(rows)
        for number in used:
            checkpoint()
            share = (outputs @ vectors[number].to(outputs.dtype) * weight).sum()
            (gradient,) = torch.autograd.grad(share, points, retain_graph=True)
            added[number] = torch.einsum("ste,te->t", gradient, path.delta)
        return added

    _integrate(retriever, path, n_steps, rows, product)
    return rows


register(
    MethodEntry(
        name="integrated_jacobians",
        title="Integrated Jacobians",
        help="Share of each pair of a query token and a document token, from the Jacobians of both "
        "encoders averaged along straight paths from padding tokens; a token's value is its sum "
        "over the other text. Values plus the bias share equal the score. Slow.",
        axis="Integrated Jacobians",
        unit="share of the score",
        signed=True,
        additive=True,
        needs=Capability.JACOBIAN,
        compute=attribute,
        order=8,
        citation="Möller, Nikolaev and Padó 2023, arXiv 2310.05703",
        uses_gradients=True,
        slow=True,
        one_document=True,
        version=2,
        parameters=(
            MethodParameter(
                "matrix",
                ("no", "yes"),
                "Also compute the share of every pair of a query token and a document token, "
                "which takes a backward pass for each query token and point of the path.",
            ),
            MethodParameter(
                "steps",
                ("auto", *map(str, STEPS)),
                "Points on each path. auto doubles them until the sum over a text's tokens is "
                "within 1% of its exact value.",
            ),
        ),
    )
)
