//! Vectors of voices to speakers: near ones are joined, a mixture model may drop speakers that others explain, and each voice of a
//! window goes to another speaker. Knows no tensor and no audio.
//!
//! Sources: `VBxClustering` and `cluster_vbx` of the Python package `pyannote.audio` 4.0; <https://arxiv.org/abs/2012.14952>.

use std::borrow::Borrow;
use std::f64::consts::TAU;

use super::config::Clustering;
use super::grouping::{Linkage, groups, unit};
use super::plda::Plda;
use super::segmentation::{FRAMES, SPEAKERS};

/// The most voices that are clustered: more are thinned out evenly.
pub(super) const MAX_CLUSTERED: usize = 4_096;
/// The least share of a window that a voice is heard alone, of those that are clustered: 1 / 5 with the mixture model, 1 / 10 without.
const CLEAR_PART: usize = 5;
const CLEAR_PART_OF_GROUPS: usize = 10;
/// A group of less than 1 / 50 of few vectors is no speaker.
const LEAST_PART: usize = 50;
/// How often the centres of groups are computed again from what is nearest to them.
const REFINED: usize = 2;
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
    /// Frames in which it is heard alone.
    pub(super) alone: usize,
    pub(super) vector: Vec<f32>,
}

impl Voice {
    /// Whether one part in so many of its window is heard of it alone.
    pub(super) fn is_clear(&self, part: usize) -> bool {
        self.alone * part >= FRAMES
    }
}

impl Clustering {
    /// Whether a voice is heard alone for long enough to be clustered.
    pub(super) fn is_clear(&self, voice: &Voice) -> bool {
        voice.is_clear(match self {
            Self::Vbx { .. } => CLEAR_PART,
            Self::Agglomerative { .. } => CLEAR_PART_OF_GROUPS,
        })
    }
}

/// The speakers of a recording.
#[derive(Debug, Clone, Default)]
pub(super) struct Speakers {
    /// What the vectors of each have in common.
    centres: Vec<Vec<f64>>,
}

impl Speakers {
    /// Clusters at most `most_clustered` voices into at most `most` speakers.
    pub(super) fn cluster(
        voices: &[Voice],
        (plda, settings): (&Plda, &Clustering),
        most: usize,
        most_clustered: usize,
    ) -> Self {
        let clear: Vec<&Voice> = voices.iter().filter(|voice| settings.is_clear(voice)).collect();
        if clear.len() < 2 {
            return Self::default();
        }
        let every = clear.len().div_ceil(most_clustered);
        let learned: Vec<&Voice> = clear.into_iter().step_by(every).collect();
        let (centres, weights) = match *settings {
            Clustering::Vbx { threshold, vector_weight, speaker_weight } => {
                of_mixture(&learned, plda, threshold, (vector_weight, speaker_weight))
            }
            Clustering::Agglomerative { threshold, least } => of_groups(&learned, threshold, least),
        };
        Self { centres: merged(centres, weights, most) }
    }

    /// How many there are; at least one speaks wherever somebody does.
    pub(super) fn count(&self) -> usize {
        self.centres.len().max(1)
    }

    /// The speaker of each voice, counted from 0 without order; `None` where its window has more voices than there are speakers.
    pub(super) fn of(&self, voices: &[Voice]) -> Vec<Option<usize>> {
        if self.centres.is_empty() {
            return vec![Some(0); voices.len()];
        }
        named(voices, &self.centres)
    }

    /// How alike a voice is to the speaker that it is most like: a cosine.
    pub(super) fn likeness(&self, voice: &Voice) -> f64 {
        let cosines = self.centres.iter().map(|centre| cosine(&voice.vector, centre));
        cosines.fold(f64::NEG_INFINITY, f64::max)
    }
}

/// The column of each voice among `centres`, of which the voices of a window take different ones.
fn named<V: Borrow<Voice>>(voices: &[V], centres: &[Vec<f64>]) -> Vec<Option<usize>> {
    let mut found = Vec::with_capacity(voices.len());
    for window in voices.chunk_by(|one, other| one.borrow().window == other.borrow().window) {
        let cosines =
            |voice: &V| centres.iter().map(|centre| cosine(&voice.borrow().vector, centre)).collect();
        found.extend(assigned(&window.iter().map(cosines).collect::<Vec<_>>()));
    }
    found
}

/// Centres and weights of the speakers that a mixture model keeps.
fn of_mixture(
    learned: &[&Voice],
    plda: &Plda,
    threshold: f64,
    settings: (f64, f64),
) -> (Vec<Vec<f64>>, Vec<f64>) {
    let raw: Vec<&[f32]> = learned.iter().map(|voice| &voice.vector[..]).collect();
    let unit: Vec<Vec<f64>> = raw.iter().map(|vector| unit(vector)).collect();
    let groups = groups(&unit, Linkage::Centroid, threshold);
    let vectors: Vec<Vec<f64>> = raw.iter().map(|vector| plda.transform(vector)).collect();
    let (shares, weights) = mixture(&vectors, &groups, &plda.spread, settings);
    let kept: Vec<usize> = (0..weights.len()).filter(|&speaker| weights[speaker] > LEAST_SHARE).collect();
    let centres = kept.iter().map(|&speaker| centre(&raw, &shares, speaker)).collect();
    (centres, kept.iter().map(|&speaker| weights[speaker]).collect())
}

/// Centres and weights of groups that are no smaller than `least`, or than a share of all where there are few: the means of vectors of
/// length 1, and then of those that are nearest to each while no window has two of one.
fn of_groups(learned: &[&Voice], threshold: f64, least: usize) -> (Vec<Vec<f64>>, Vec<f64>) {
    let unit: Vec<Vec<f64>> = learned.iter().map(|voice| unit(&voice.vector)).collect();
    let groups = groups(&unit, Linkage::Average, threshold);
    let mut sizes = vec![0usize; groups.iter().max().map_or(0, |last| last + 1)];
    groups.iter().for_each(|&group| sizes[group] += 1);
    let least = least.min(unit.len().div_ceil(LEAST_PART)).min(sizes.iter().copied().max().unwrap_or(0));
    let kept: Vec<usize> = (0..sizes.len()).filter(|&group| sizes[group] >= least).collect();
    let mut names: Vec<Option<usize>> = groups.iter().map(|group| kept.binary_search(group).ok()).collect();
    let mut means = self::means(&names, &unit);
    for _ in 0..REFINED {
        names = named(learned, &means.0);
        means = self::means(&names, &unit);
    }
    means
}

/// The mean of the vectors of each name that has some, and their number.
fn means(names: &[Option<usize>], vectors: &[Vec<f64>]) -> (Vec<Vec<f64>>, Vec<f64>) {
    let count = names.iter().flatten().max().map_or(0, |last| last + 1);
    let width = vectors.first().map_or(0, Vec::len);
    let mut sums = vec![(vec![0.0; width], 0.0); count];
    for (name, vector) in names.iter().zip(vectors) {
        let Some((sum, weight)) = name.and_then(|name| sums.get_mut(name)) else { continue };
        sum.iter_mut().zip(vector).for_each(|(sum, x)| *sum += x);
        *weight += 1.0;
    }
    sums.retain(|(_, weight)| *weight > 0.0);
    let mean = |(sum, weight): (Vec<f64>, f64)| (sum.into_iter().map(|x| x / weight).collect(), weight);
    sums.into_iter().map(mean).unzip()
}

/// The share of each speaker in each vector, and of all, from the groups on.
fn mixture(
    vectors: &[Vec<f64>],
    groups: &[usize],
    spread: &[f64],
    (a, b): (f64, f64),
) -> (Vec<Vec<f64>>, Vec<f64>) {
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
