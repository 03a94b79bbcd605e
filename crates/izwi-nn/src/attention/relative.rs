//! Bidirectional attention with relative positions within packed sequences: <https://arxiv.org/abs/1901.02860>,
//! section 3.3. Knows no projection.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::slices::with_slices;
use izwi_kernels::attention::RelativeAttention;

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

/// Every row of a span attends to all rows of its span: the weight of a key is the softmax of
/// `((q + content) · k + (q + place) · p) / sqrt(head_dim)`, where `p` is the row of `distances` for how far apart they
/// are. `q`, `k`, `v` and the answer are `[rows, heads * head_dim]`, rows outside spans zero; `distances`
/// `[2 * longest - 1, heads * head_dim]`, ordered as [`sinusoids`] with `longest` no less than the longest span; the two
/// `biases`, `content` and `place`, `[heads * head_dim]`. On the CPU a span's result is the same bits in any
/// batch.
///
/// # Errors
/// Shapes do not fit.
pub fn relative(
    [q, k, v]: [&Tensor; 3],
    distances: &Tensor,
    biases: [&Tensor; 2],
    heads: usize,
    spans: &[Range<usize>],
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
    spans: &[Range<usize>],
) -> Result<()> {
    let (rows, width) = q.dims2()?;
    let count = distances.dim(0)?;
    let shapes = [q, k, v].iter().all(|x| x.dims() == [rows, width]) && distances.dims() == [count, width];
    if !shapes || biases.iter().any(|bias| bias.dims() != [width]) || heads == 0 || width % heads != 0 {
        bail!(
            "relative attention: {:?} {:?} {:?} {:?}, {heads} heads",
            q.dims(),
            k.dims(),
            v.dims(),
            distances.dims()
        )
    }
    let ordered = spans.windows(2).all(|pair| pair[0].end <= pair[1].start);
    let fits =
        |span: &Range<usize>| span.start <= span.end && span.end <= rows && 2 * span.len() <= count + 1;
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
    spans: &[Range<usize>],
) -> Result<Tensor> {
    let width = mixed.dim(1)? / 3;
    let part = |index: usize| mixed.narrow(1, index * width, width);
    let (q, k, v) = (part(0)?, part(1)?, part(2)?);
    if mixed.device().is_metal() && 3 * width == mixed.dim(1)? {
        check([&q, &k, &v], distances, biases, heads, spans)?;
        return izwi_metal::relative::relative(mixed, distances, biases, heads, spans);
    }
    relative([&q, &k, &v], distances, biases, heads, spans)
}

fn composite(
    qkv: [&Tensor; 3],
    distances: &Tensor,
    biases: [&Tensor; 2],
    heads: usize,
    spans: &[Range<usize>],
) -> Result<Tensor> {
    let (rows, width) = qkv[0].dims2()?;
    let zeros = |rows: usize| Tensor::zeros((rows, width), DType::F32, qkv[0].device());
    let mut parts = Vec::with_capacity(2 * spans.len() + 1);
    let mut end = 0;
    for span in spans.iter().filter(|span| !span.is_empty()) {
        if span.start > end {
            parts.push(zeros(span.start - end)?);
        }
        let [q, k, v] = qkv.map(|x| x.narrow(0, span.start, span.len()));
        let longest = distances.dim(0)? / 2 + 1;
        let distances = distances.narrow(0, longest - span.len(), 2 * span.len() - 1)?;
        parts.push(one([&q?, &k?, &v?], &distances, biases, heads)?);
        end = span.end;
    }
    if rows > end {
        parts.push(zeros(rows - end)?);
    }
    Tensor::cat(&parts, 0)
}

/// One sequence with candle's operations.
fn one([q, k, v]: [&Tensor; 3], distances: &Tensor, biases: [&Tensor; 2], heads: usize) -> Result<Tensor> {
    let (rows, width) = q.dims2()?;
    let by_head = |x: &Tensor| x.reshape((x.dim(0)?, heads, width / heads))?.transpose(0, 1)?.contiguous();
    let [content, place] = biases.map(|bias| by_head(&q.broadcast_add(bias)?));
    let columns = |x: &Tensor| by_head(x)?.transpose(1, 2)?.contiguous();
    let by_content = content?.matmul(&columns(k)?)?; // [heads, rows, rows]
    let by_distance = place?.matmul(&columns(distances)?)?; // [heads, rows, 2 * rows - 1]
    // The relative shift: a leading column of zeros moves each row by one against the row before.
    let shifted = by_distance.pad_with_zeros(2, 1, 0)?.reshape((heads, 2 * rows, rows))?;
    let shifted = shifted.narrow(1, 1, 2 * rows - 1)?.contiguous()?.reshape((heads, rows, 2 * rows - 1))?;
    let scores = ((by_content + shifted.narrow(2, 0, rows)?)? * (1.0 / ((width / heads) as f64).sqrt()))?;
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

    /// The formula, element by element.
    fn plain(qkv: [&Tensor; 3], distances: &Tensor, biases: [&Tensor; 2], heads: usize) -> Vec<Vec<f32>> {
        let [q, k, v] = qkv.map(|x| x.to_vec2::<f32>().unwrap());
        let (p, [u, w]) = (distances.to_vec2::<f32>().unwrap(), biases.map(|x| x.to_vec1::<f32>().unwrap()));
        let (rows, width) = (q.len(), u.len());
        let head_dim = width / heads;
        let mut y = vec![vec![0f32; width]; rows];
        for head in 0..heads {
            let channels = head * head_dim..(head + 1) * head_dim;
            for i in 0..rows {
                let score = |j: usize| {
                    let p = &p[p.len() / 2 + j - i];
                    let sum: f32 =
                        channels.clone().map(|c| (q[i][c] + u[c]) * k[j][c] + (q[i][c] + w[c]) * p[c]).sum();
                    (sum / (head_dim as f32).sqrt()).exp()
                };
                let weights: Vec<f32> = (0..rows).map(score).collect();
                let total: f32 = weights.iter().sum();
                for c in channels.clone() {
                    y[i][c] = weights.iter().zip(&v).map(|(weight, v)| weight / total * v[c]).sum();
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
                spans.push(rows + gap..rows + gap + length);
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
            for span in spans {
                let [q, k, v] = [&q, &k, &v].map(|x| x.narrow(0, span.start, span.len()).unwrap());
                let p = p.narrow(0, longest - span.len(), 2 * span.len() - 1).unwrap();
                let alone = relative([&q, &k, &v], &p, [&u, &w], heads, std::slice::from_ref(&(0..span.len()))).unwrap();
                prop_assert_eq!(&alone.to_vec2::<f32>().unwrap()[..], &y[span.clone()]);
                for (ours, theirs) in y[span].iter().zip(plain([&q, &k, &v], &p, [&u, &w], heads)) {
                    let off = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
                    prop_assert!(off < 1e-4, "{off}");
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
        let run = |heads, span| relative([&x, &x, &x], &p, [&bias, &bias], heads, &[span]);
        assert!(run(2, 0..4).is_ok() && run(4, 0..4).is_err() && run(2, 0..5).is_err());
        assert!(
            relative(
                [&x, &x, &x],
                &p.narrow(0, 0, 5).unwrap(),
                [&bias, &bias],
                2,
                std::slice::from_ref(&(0..4))
            )
            .is_err()
        );
    }
}
