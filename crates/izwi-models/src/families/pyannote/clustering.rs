//! Vectors of voices to speakers: near ones are joined, a mixture model drops speakers that others explain, and each voice of a
//! window goes to another speaker. Knows no tensor and no audio.
//!
//! Sources: `VBxClustering` and `cluster_vbx` of the Python package `pyannote.audio` 4.0; <https://arxiv.org/abs/2012.14952>.

use std::f64::consts::TAU;

use super::config::Clustering;
use super::plda::Plda;
use super::segmentation::SPEAKERS;

/// The most vectors that speakers are learned from: more are thinned out evenly.
pub(super) const MAX_LEARNED: usize = 4_096;
/// Steps of the mixture model, the least gain of one, and how sure it is of the groups that it starts with.
const STEPS: usize = 20;
const LEAST_GAIN: f64 = 1e-4;
const CERTAINTY: f64 = 7.0;
/// Added to shares under the logarithm, and the least share of a speaker.
const GUARD: f64 = 1e-8;
const LEAST_SHARE: f64 = 1e-7;

/// Who one of the speakers of a window is.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Voice {
    pub(super) window: usize,
    /// Its place in the window.
    pub(super) place: usize,
    /// Whether enough of it is heard alone.
    pub(super) is_clear: bool,
    pub(super) vector: Vec<f32>,
}

/// The speaker of each voice, of at most so many, counted from 0 without order; `None` where the window has more voices than there are
/// speakers.
pub(super) fn speakers(
    voices: &[Voice],
    plda: &Plda,
    settings: &Clustering,
    max_speakers: usize,
) -> Vec<Option<usize>> {
    let clear: Vec<&[f32]> =
        voices.iter().filter(|voice| voice.is_clear).map(|voice| &voice.vector[..]).collect();
    if clear.len() < 2 {
        return vec![Some(0); voices.len()];
    }
    let every = clear.len().div_ceil(MAX_LEARNED);
    let learned: Vec<&[f32]> = clear.into_iter().step_by(every).collect();
    let groups = joined(&learned, settings.threshold);
    let vectors: Vec<Vec<f64>> = learned.iter().map(|vector| plda.transform(vector)).collect();
    let (shares, weights) = mixture(&vectors, &groups, &plda.spread, settings);
    let kept: Vec<usize> = (0..weights.len()).filter(|&speaker| weights[speaker] > LEAST_SHARE).collect();
    let centres = kept.iter().map(|&speaker| centre(&learned, &shares, speaker)).collect();
    let centres = merged(centres, kept.iter().map(|&speaker| weights[speaker]).collect(), max_speakers);
    let mut found = Vec::with_capacity(voices.len());
    for window in voices.chunk_by(|one, other| one.window == other.window) {
        let likeness: Vec<Vec<f64>> = window
            .iter()
            .map(|voice| centres.iter().map(|centre| cosine(&voice.vector, centre)).collect())
            .collect();
        found.extend(assigned(&likeness));
    }
    found
}

/// The group of each vector: agglomerative clustering by the distance of centroids, as `linkage` and `fcluster` of SciPy do it.
/// Vectors are brought to length 1.
fn joined(vectors: &[&[f32]], threshold: f64) -> Vec<usize> {
    let count = vectors.len();
    let unit: Vec<Vec<f64>> = vectors
        .iter()
        .map(|vector| {
            let length = vector.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            vector.iter().map(|&x| if length > 0.0 { f64::from(x) / length } else { 0.0 }).collect()
        })
        .collect();
    let mut squares = Squares::new(&unit);
    let mut groups: Vec<usize> = (0..count).collect();
    let mut sizes = vec![1usize; count];
    // The nearest group after each one.
    let mut nearest: Vec<Option<(f64, usize)>> = (0..count).map(|at| squares.nearest(at, &sizes)).collect();
    // A join beyond the threshold is in no group, nor is what it joins: those of later joins without it lie further apart.
    while let Some((square, a, b)) = (0..count)
        .filter(|&at| sizes[at] > 0)
        .filter_map(|at| nearest[at].map(|(square, other)| (square, at, other)))
        .min_by(|one, other| one.0.total_cmp(&other.0))
        .filter(|(square, ..)| square.max(0.0).sqrt() <= threshold)
    {
        let [own, other] = [a, b].map(|at| sizes[at] as f64);
        sizes[b] += sizes[a];
        sizes[a] = 0;
        for at in (0..count).filter(|&at| sizes[at] > 0 && at != b) {
            let whole = own + other;
            let moved =
                (own * squares.of(a, at) + other * squares.of(b, at) - own * other * square / whole) / whole;
            squares.set(b, at, moved);
        }
        groups.iter_mut().filter(|group| **group == a).for_each(|group| *group = b);
        for at in (0..b).filter(|&at| sizes[at] > 0) {
            match nearest[at] {
                Some((_, other)) if other == a || other == b => nearest[at] = squares.nearest(at, &sizes),
                Some((square, _)) if squares.of(at, b) < square => nearest[at] = Some((squares.of(at, b), b)),
                _ => {}
            }
        }
        nearest[b] = squares.nearest(b, &sizes);
    }
    let mut names: Vec<usize> = groups.clone();
    names.sort_unstable();
    names.dedup();
    groups.iter().map(|group| names.partition_point(|name| name < group)).collect()
}

/// Squared distances of each two groups.
struct Squares {
    values: Vec<f64>,
    count: usize,
}

impl Squares {
    fn new(vectors: &[Vec<f64>]) -> Self {
        let count = vectors.len();
        let mut values = Vec::with_capacity(count * count.saturating_sub(1) / 2);
        for (at, vector) in vectors.iter().enumerate() {
            values.extend(
                vectors[at + 1..]
                    .iter()
                    .map(|other| vector.iter().zip(other).map(|(a, b)| (a - b) * (a - b)).sum::<f64>()),
            );
        }
        Self { values, count }
    }

    fn place(&self, a: usize, b: usize) -> usize {
        let (low, high) = (a.min(b), a.max(b));
        low * (2 * self.count - low - 1) / 2 + high - low - 1
    }

    fn of(&self, a: usize, b: usize) -> f64 {
        self.values[self.place(a, b)]
    }

    fn set(&mut self, a: usize, b: usize, square: f64) {
        let place = self.place(a, b);
        self.values[place] = square;
    }

    /// The nearest group after `at` that has a size.
    fn nearest(&self, at: usize, sizes: &[usize]) -> Option<(f64, usize)> {
        let others = (at + 1..self.count).filter(|&other| sizes[other] > 0);
        others.map(|other| (self.of(at, other), other)).min_by(|one, other| one.0.total_cmp(&other.0))
    }
}

/// The share of each speaker in each vector, and of all, from the groups on.
fn mixture(
    vectors: &[Vec<f64>],
    groups: &[usize],
    spread: &[f64],
    settings: &Clustering,
) -> (Vec<Vec<f64>>, Vec<f64>) {
    let Clustering { vector_weight: a, speaker_weight: b, .. } = *settings;
    let count = groups.iter().max().map_or(0, |last| last + 1);
    let total = CERTAINTY.exp() + (count - 1) as f64;
    let share = |own: bool| if own { CERTAINTY.exp() / total } else { 1.0 / total };
    let mut shares: Vec<Vec<f64>> =
        groups.iter().map(|&group| (0..count).map(|speaker| share(speaker == group)).collect()).collect();
    let mut weights = vec![1.0 / count as f64; count];
    let constant =
        |vector: &[f64]| -0.5 * (vector.iter().map(|x| x * x).sum::<f64>() + vector.len() as f64 * TAU.ln());
    let constants: Vec<f64> = vectors.iter().map(|vector| constant(vector)).collect();
    let mut before: Option<f64> = None;
    for _ in 0..STEPS {
        let mut bound = 0.0;
        let models: Vec<(Vec<f64>, f64)> = (0..count)
            .map(|speaker| {
                let mass: f64 = shares.iter().map(|shares| shares[speaker]).sum();
                let mut mean = vec![0.0; spread.len()];
                for (vector, shares) in vectors.iter().zip(&shares) {
                    mean.iter_mut().zip(vector).for_each(|(mean, x)| *mean += shares[speaker] * x);
                }
                let mut offset = 0.0;
                for (mean, &spread) in mean.iter_mut().zip(spread) {
                    let variance = 1.0 / (1.0 + a / b * mass * spread);
                    let latent = a / b * variance * *mean * spread.sqrt();
                    offset += (variance + latent * latent) * spread;
                    bound += variance.ln() - variance - latent * latent + 1.0;
                    // Of the product with a vector that is not scaled.
                    *mean = latent * spread.sqrt();
                }
                (mean, -0.5 * offset)
            })
            .collect();
        bound *= 0.5 * b;
        let logarithms: Vec<f64> = weights.iter().map(|weight| (weight + GUARD).ln()).collect();
        for ((vector, constant), shares) in vectors.iter().zip(&constants).zip(&mut shares) {
            for ((share, (mean, offset)), logarithm) in shares.iter_mut().zip(&models).zip(&logarithms) {
                let product: f64 = vector.iter().zip(mean).map(|(x, mean)| x * mean).sum();
                *share = a * (product + offset + constant) + logarithm;
            }
            let most = shares.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum = most + shares.iter().map(|share| (share - most).exp()).sum::<f64>().ln();
            shares.iter_mut().for_each(|share| *share = (*share - sum).exp());
            bound += sum;
        }
        for (speaker, weight) in weights.iter_mut().enumerate() {
            *weight = shares.iter().map(|shares| shares[speaker]).sum::<f64>() / vectors.len() as f64;
        }
        if before.replace(bound).is_some_and(|before| bound - before < LEAST_GAIN) {
            break;
        }
    }
    (shares, weights)
}

/// At most so many centres: of more, the two that are most alike become one, in proportion to their weights.
fn merged(mut centres: Vec<Vec<f64>>, mut weights: Vec<f64>, most: usize) -> Vec<Vec<f64>> {
    while centres.len() > most.max(1) {
        let pairs = (1..centres.len()).flat_map(|later| (0..later).map(move |earlier| (earlier, later)));
        let alike = |&(a, b): &(usize, usize)| cosine(&centres[a], &centres[b]);
        let Some((into, from)) = pairs.max_by(|one, other| alike(one).total_cmp(&alike(other))) else {
            break;
        };
        let (centre, weight) = (centres.swap_remove(from), weights.swap_remove(from));
        let share = weight / (weight + weights[into]);
        centres[into].iter_mut().zip(&centre).for_each(|(own, other)| *own += share * (other - *own));
        weights[into] += weight;
    }
    centres
}

/// The mean of the vectors by their share of a speaker.
fn centre(vectors: &[&[f32]], shares: &[Vec<f64>], speaker: usize) -> Vec<f64> {
    let mass: f64 = shares.iter().map(|shares| shares[speaker]).sum();
    let mut centre = vec![0.0; vectors.first().map_or(0, |vector| vector.len())];
    for (vector, shares) in vectors.iter().zip(shares) {
        centre.iter_mut().zip(*vector).for_each(|(sum, &x)| *sum += shares[speaker] * f64::from(x) / mass);
    }
    centre
}

fn cosine<X: Copy + Into<f64>>(vector: &[X], centre: &[f64]) -> f64 {
    let (mut product, mut own, mut other) = (0.0, 0.0, 0.0);
    for (&x, &y) in vector.iter().zip(centre) {
        let x = x.into();
        (product, own, other) = (product + x * y, own + x * x, other + y * y);
    }
    let length = (own * other).sqrt();
    if length > 0.0 { product / length } else { 0.0 }
}

/// The column of each row so that none is taken twice, as many rows as possible have one, and the sum is largest.
fn assigned(likeness: &[Vec<f64>]) -> Vec<Option<usize>> {
    let columns = likeness.first().map_or(0, Vec::len);
    // Of each row, the columns that it could take beside all others.
    let best: Vec<Vec<usize>> = likeness
        .iter()
        .map(|row| {
            let mut order: Vec<usize> = (0..columns).collect();
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
            order.truncate(SPEAKERS);
            order
        })
        .collect();
    let mut chosen = (0, f64::NEG_INFINITY, vec![None; likeness.len()]);
    let mut open = vec![(0usize, 0usize, 0.0f64, Vec::<Option<usize>>::new())];
    while let Some((row, taken, sum, places)) = open.pop() {
        if row == likeness.len() {
            if (taken, sum) > (chosen.0, chosen.1) {
                chosen = (taken, sum, places);
            }
            continue;
        }
        open.push((row + 1, taken, sum, [&places[..], &[None]].concat()));
        for &column in best[row].iter().filter(|&&column| !places.contains(&Some(column))) {
            let places = [&places[..], &[Some(column)]].concat();
            open.push((row + 1, taken + 1, sum + likeness[row][column], places));
        }
    }
    chosen.2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_vectors_are_one_group_and_a_chain_is_cut_by_its_centroids() {
        let at = |degrees: f32| vec![3.0 * degrees.to_radians().cos(), 3.0 * degrees.to_radians().sin()];
        let vectors: Vec<Vec<f32>> = [0.0, 90.0, 4.0, 96.0, 10.0, 200.0].map(at).to_vec();
        let slices: Vec<&[f32]> = vectors.iter().map(|vector| &vector[..]).collect();
        assert_eq!(joined(&slices, 0.3), [1, 0, 1, 0, 1, 2]);
        assert_eq!(joined(&slices, 0.0), [0, 1, 2, 3, 4, 5]);
        assert_eq!(joined(&slices, 3.0), [0; 6]);
    }

    #[test]
    fn the_most_alike_of_too_many_speakers_are_one() {
        let centres = || vec![vec![1.0, 0.0], vec![0.0, 2.0], vec![0.0, 1.0], vec![-1.0, 0.1]];
        let weights = || vec![0.4, 0.1, 0.3, 0.2];
        assert_eq!(merged(centres(), weights(), 4), centres());
        assert_eq!(merged(centres(), weights(), 3), [vec![1.0, 0.0], vec![0.0, 1.25], vec![-1.0, 0.1]]);
        assert_eq!(merged(centres(), weights(), 1).len(), 1);
        assert_eq!(merged(Vec::new(), Vec::new(), 0).len(), 0);
    }

    #[test]
    fn voices_of_a_window_go_to_different_speakers() {
        assert_eq!(assigned(&[vec![0.9, 0.8], vec![0.95, 0.1]]), [Some(1), Some(0)]);
        assert_eq!(assigned(&[vec![0.9], vec![0.95]]), [None, Some(0)]);
        assert_eq!(assigned(&[vec![0.1, 0.2, 0.3]]), [Some(2)]);
        assert_eq!(
            assigned(&[vec![-0.5, -0.2], vec![-0.9, -0.1], vec![-0.3, -0.4]]),
            [None, Some(1), Some(0)]
        );
        assert_eq!(assigned(&[]), []);
    }
}
