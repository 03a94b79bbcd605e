//! Attention with relative positions within packed sequences: <https://arxiv.org/abs/1901.02860>,
//! section 3.3. Knows no projection.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::slices::with_slices;
use izwi_kernels::attention::RelativeAttention;
pub use izwi_kernels::attention::RelativeSpan;

/// Sines and cosines of the distances between the rows of a sequence, `[2 * longest - 1, width]`: row `r` is for a query
/// `longest - 1 - r` rows after the key. Channels `2i` and `2i + 1` are sine and cosine of `distance * 10000^(-2i/width)`.
///
/// # Errors
/// The device is out of memory.
pub fn sinusoids(longest: usize, width: usize, device: &Device) -> Result<Tensor> {
    let step = -(10_000f64.ln() / width as f64) as f32;
    let waves: Vec<f32> = (0..width).map(|channel| ((channel / 2 * 2) as f32 * step).exp()).collect();
    let rows = (2 * longest).saturating_sub(1);
    let mut values = Vec::with_capacity(rows * width);
    for row in 0..rows {
        let distance = longest as f32 - 1.0 - row as f32;
        values.extend(waves.iter().enumerate().map(|(channel, wave)| {
            let angle = distance * wave;
            if channel % 2 == 0 { angle.sin() } else { angle.cos() }
        }));
    }
    Tensor::from_vec(values, (rows, width), device)
}

/// The queries of each span attend to its keys: the weight of a key is the softmax of
/// `((q + content) · k + (q + place) · p) / sqrt(head_dim)`, where `p` is the row of `distances` for how far apart they
/// are. `q` and the answer are `[rows, heads * head_dim]`, rows outside spans zero; `k` and `v`
/// `[key rows, heads * head_dim]`; `distances` `[2 * longest - 1, heads * head_dim]`, ordered as [`sinusoids`] with `longest`
/// no less than the most keys of a span; the two `biases`, `content` and `place`, `[heads * head_dim]`. On the CPU a
/// span's result is the same bits in any batch.
///
/// # Errors
/// Shapes do not fit.
pub fn relative(
    [q, k, v]: [&Tensor; 3],
    distances: &Tensor,
    biases: [&Tensor; 2],
    heads: usize,
    spans: &[RelativeSpan],
) -> Result<Tensor> {
    check([q, k, v], distances, biases, heads, spans)?;
    let (rows, width) = q.dims2()?;
    if !q.device().is_cpu() {
        return composite([q, k, v], distances, biases, heads, spans);
    }
    let [content, place] = biases;
    let y = with_slices([q, k, v, distances, content, place], |[q, k, v, distances, content, place]| {
        let mut y = vec![0f32; q.len()];
        RelativeAttention {
            q,
            k,
            v,
            position_embeddings: distances,
            content_bias: content,
            position_bias: place,
            heads,
        }
        .attend(spans, &mut y);
        y
    })?;
    Tensor::from_vec(y, (rows, width), q.device())
}

fn check(
    [q, k, v]: [&Tensor; 3],
    distances: &Tensor,
    biases: [&Tensor; 2],
    heads: usize,
    spans: &[RelativeSpan],
) -> Result<()> {
    let (rows, width) = q.dims2()?;
    let (keys, count) = (k.dim(0)?, distances.dim(0)?);
    let shapes = [k, v].iter().all(|x| x.dims() == [keys, width]) && distances.dims() == [count, width];
    if !shapes || biases.iter().any(|bias| bias.dims() != [width]) || heads == 0 || width % heads != 0 {
        bail!(
            "relative attention: {:?} {:?} {:?} {:?}, {heads} heads",
            q.dims(),
            k.dims(),
            v.dims(),
            distances.dims()
        )
    }
    let ordered = spans.windows(2).all(|pair| pair[0].queries.end <= pair[1].queries.start);
    let fits = |span: &RelativeSpan| span.fits(rows, keys, count / 2 + 1);
    if !ordered || !spans.iter().all(fits) || count % 2 == 0 || width == 0 {
        bail!("relative attention: {spans:?} do not fit {rows} rows and {count} distances")
    }
    Ok(())
}

/// As [`relative`], with queries, keys and values side by side: `mixed` is `[rows, 3 * heads * head_dim]`.
///
/// # Errors
/// Shapes do not fit.
pub fn relative_mixed(
    mixed: &Tensor,
    distances: &Tensor,
    biases: [&Tensor; 2],
    heads: usize,
    spans: &[RelativeSpan],
) -> Result<Tensor> {
    let width = mixed.dim(1)? / 3;
    let part = |index: usize| mixed.narrow(1, index * width, width);
    let (q, k, v) = (part(0)?, part(1)?, part(2)?);
    let whole: Option<Vec<Range<usize>>> = spans.iter().map(RelativeSpan::as_whole).collect();
    if let Some(whole) = whole.filter(|_| mixed.device().is_metal() && 3 * width == mixed.dims()[1]) {
        check([&q, &k, &v], distances, biases, heads, spans)?;
        return izwi_metal::relative::relative(mixed, distances, biases, heads, &whole);
    }
    relative([&q, &k, &v], distances, biases, heads, spans)
}

fn composite(
    [q, k, v]: [&Tensor; 3],
    distances: &Tensor,
    biases: [&Tensor; 2],
    heads: usize,
    spans: &[RelativeSpan],
) -> Result<Tensor> {
    let (rows, width) = q.dims2()?;
    let zeros = |rows: usize| Tensor::zeros((rows, width), DType::F32, q.device());
    let mut parts = Vec::with_capacity(2 * spans.len() + 1);
    let mut end = 0;
    for span in spans.iter().filter(|span| !span.queries.is_empty()) {
        let RelativeSpan { queries, keys, .. } = span;
        if queries.start > end {
            parts.push(zeros(queries.start - end)?);
        }
        let q = q.narrow(0, queries.start, queries.len())?;
        let [k, v] = [k, v].map(|x| x.narrow(0, keys.start, keys.len()));
        parts.push(one([&q, &k?, &v?], distances, biases, heads, span)?);
        end = queries.end;
    }
    if rows > end {
        parts.push(zeros(rows - end)?);
    }
    Tensor::cat(&parts, 0)
}

/// One span with candle's operations.
fn one(
    [q, k, v]: [&Tensor; 3],
    distances: &Tensor,
    biases: [&Tensor; 2],
    heads: usize,
    span: &RelativeSpan,
) -> Result<Tensor> {
    let ((rows, width), keys) = (q.dims2()?, k.dim(0)?);
    // A query meets the keys at the distances from the last one before them on.
    let first = distances.dim(0)? / 2 + 1 - span.offset - rows;
    let columns = rows + keys - 1;
    let distances = distances.narrow(0, first, columns)?;
    let by_head = |x: &Tensor| x.reshape((x.dim(0)?, heads, width / heads))?.transpose(0, 1)?.contiguous();
    let [content, place] = biases.map(|bias| by_head(&q.broadcast_add(bias)?));
    let transposed = |x: &Tensor| by_head(x)?.transpose(1, 2)?.contiguous();
    let by_content = content?.matmul(&transposed(k)?)?; // [heads, rows, keys]
    let by_distance = place?.matmul(&transposed(&distances)?)?; // [heads, rows, columns]
    // The relative shift: read `columns` apart, rows that are one longer begin one earlier each.
    let shifted = by_distance.pad_with_zeros(2, 0, 1)?.flatten_from(1)?; // [heads, rows * (columns + 1)]
    let shifted = shifted.narrow(1, rows - 1, rows * columns)?.reshape((heads, rows, columns))?;
    let shifted = shifted.narrow(2, 0, keys)?;
    let mut scores = ((by_content + shifted)? * (1.0 / ((width / heads) as f64).sqrt()))?;
    if span.reach != [usize::MAX; 2] {
        let outside = |query: usize, key: usize| {
            let place = query + span.offset;
            key.saturating_add(span.reach[0]) < place || key > place.saturating_add(span.reach[1])
        };
        let mask =
            |query| (0..keys).map(move |key| if outside(query, key) { f32::NEG_INFINITY } else { 0.0 });
        let mask: Vec<f32> = (0..rows).flat_map(mask).collect();
        scores = scores.broadcast_add(&Tensor::from_vec(mask, (rows, keys), q.device())?)?;
    }
    let mixed = candle_nn::ops::softmax_last_dim(&scores)?.matmul(&by_head(v)?)?;
    mixed.transpose(0, 1)?.reshape((rows, width))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn random(rows: usize, width: usize) -> Tensor {
        Tensor::randn(0f32, 1.0, (rows, width), &Device::Cpu).unwrap()
    }

    /// The formula, element by element, for the queries of a span.
    fn plain(
        qkv: [&Tensor; 3],
        distances: &Tensor,
        biases: [&Tensor; 2],
        heads: usize,
        span: &RelativeSpan,
    ) -> Vec<Vec<f32>> {
        let [q, k, v] = qkv.map(|x| x.to_vec2::<f32>().unwrap());
        let (q, k, v) = (&q[span.queries.clone()], &k[span.keys.clone()], &v[span.keys.clone()]);
        let (p, [u, w]) = (distances.to_vec2::<f32>().unwrap(), biases.map(|x| x.to_vec1::<f32>().unwrap()));
        let (rows, width) = (q.len(), u.len());
        let head_dim = width / heads;
        let mut y = vec![vec![0f32; width]; rows];
        for head in 0..heads {
            let channels = head * head_dim..(head + 1) * head_dim;
            for i in 0..rows {
                let place = i + span.offset;
                let score = |j: usize| {
                    let p = &p[p.len() / 2 + j - place];
                    let sum: f32 =
                        channels.clone().map(|c| (q[i][c] + u[c]) * k[j][c] + (q[i][c] + w[c]) * p[c]).sum();
                    (sum / (head_dim as f32).sqrt()).exp()
                };
                let ([before, after], keys) = (span.reach, k.len());
                let is_near = |j: usize| j + before.min(keys) >= place && j <= place.saturating_add(after);
                let weight = |j: usize| if is_near(j) { score(j) } else { 0.0 };
                let weights: Vec<f32> = (0..keys).map(weight).collect();
                let total: f32 = weights.iter().sum();
                for c in channels.clone() {
                    y[i][c] = weights.iter().zip(v).map(|(weight, v)| weight / total * v[c]).sum();
                }
            }
        }
        y
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn spans_equal_the_formula_and_each_span_alone(
            heads in 1usize..4,
            head_dim in prop::sample::select(vec![3usize, 12, 64]),
            lengths in prop::collection::vec((0usize..3, 1usize..100), 1..4),
        ) {
            let width = heads * head_dim;
            let mut spans = Vec::new();
            let mut rows = 0;
            for (gap, length) in &lengths {
                spans.push(RelativeSpan::whole(rows + gap..rows + gap + length));
                rows += gap + length;
            }
            rows += 2;
            let longest = lengths.iter().map(|(_, length)| *length).max().unwrap() + 3;
            let (q, k, v, p) =
                (random(rows, width), random(rows, width), random(rows, width), random(2 * longest - 1, width));
            let [u, w] = [0; 2].map(|_| random(1, width).squeeze(0).unwrap());
            let y = relative([&q, &k, &v], &p, [&u, &w], heads, &spans).unwrap();
            let near = composite([&q, &k, &v], &p, [&u, &w], heads, &spans).unwrap();
            let off = (&y - &near).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
            prop_assert!(off < 1e-4, "{off}");
            let y = y.to_vec2::<f32>().unwrap();
            prop_assert!(y[rows - 2..].iter().flatten().all(|&y| y == 0.0));
            for span in spans.iter().map(|span| span.queries.clone()) {
                let [q, k, v] = [&q, &k, &v].map(|x| x.narrow(0, span.start, span.len()).unwrap());
                let p = p.narrow(0, longest - span.len(), 2 * span.len() - 1).unwrap();
                let own = RelativeSpan::whole(0..span.len());
                let alone = relative([&q, &k, &v], &p, [&u, &w], heads, std::slice::from_ref(&own)).unwrap();
                prop_assert_eq!(&alone.to_vec2::<f32>().unwrap()[..], &y[span.clone()]);
                for (ours, theirs) in y[span].iter().zip(plain([&q, &k, &v], &p, [&u, &w], heads, &own)) {
                    let off = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
                    prop_assert!(off < 1e-4, "{off}");
                }
            }
        }
    }

    #[test]
    fn queries_attend_to_the_keys_around_their_place() {
        let span = |queries, keys, offset, reach| RelativeSpan { queries, keys, offset, reach };
        let spans = [
            span(0..3, 0..40, 37, [usize::MAX; 2]),
            span(3..30, 40..81, 8, [8, 5]),
            span(30..31, 20..21, 0, [0; 2]),
        ];
        let (q, k, v, p) = (random(31, 24), random(81, 24), random(81, 24), random(83, 24));
        let [u, w] = [0; 2].map(|_| random(1, 24).squeeze(0).unwrap());
        let kernel = relative([&q, &k, &v], &p, [&u, &w], 2, &spans).unwrap();
        let operations = composite([&q, &k, &v], &p, [&u, &w], 2, &spans).unwrap();
        for y in [kernel, operations] {
            let y = y.to_vec2::<f32>().unwrap();
            for span in &spans {
                let theirs = plain([&q, &k, &v], &p, [&u, &w], 2, span);
                for (ours, theirs) in y[span.queries.clone()].iter().zip(theirs) {
                    let off = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
                    assert!(off < 1e-4, "{span:?}: {off}");
                }
            }
        }
    }

    #[test]
    fn distances_are_sinusoids_and_bad_shapes_are_errors() {
        let p = sinusoids(3, 4, &Device::Cpu).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!((p.len(), &p[2][..]), (5, &[0.0, 1.0, 0.0, 1.0][..]));
        assert!((p[0][0] - 2f32.sin()).abs() < 1e-6 && (p[4][3] - (-0.02f32).cos()).abs() < 1e-6);
        let (x, p, bias) = (random(4, 6), random(7, 6), random(1, 6).squeeze(0).unwrap());
        let short = p.narrow(0, 0, 5).unwrap();
        let run =
            |heads, rows, p| relative([&x, &x, &x], p, [&bias, &bias], heads, &[RelativeSpan::whole(rows)]);
        assert!(run(2, 0..4, &p).is_ok() && run(4, 0..4, &p).is_err() && run(2, 0..5, &p).is_err());
        assert!(run(2, 0..4, &short).is_err());
    }
}
