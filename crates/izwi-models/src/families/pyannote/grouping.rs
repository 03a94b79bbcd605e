//! Agglomerative clustering of vectors. Knows no speaker and no tensor.

/// How far two groups are from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Linkage {
    /// The distance of their centroids.
    Centroid,
    /// 1 less the cosine, the mean of all pairs.
    Average,
}

impl Linkage {
    /// The distance of two vectors of length 1 from the square of their Euclidean distance, which centroids are reckoned with.
    fn of_square(self, square: f64) -> f64 {
        match self {
            Self::Centroid => square,
            Self::Average => square / 2.0,
        }
    }

    /// The distance of a group from one that two of these sizes and distances became, which lie `between` each other.
    fn joined(self, [own, other]: [f64; 2], [a, b]: [f64; 2], between: f64) -> f64 {
        let (whole, sum) = (own + other, own * a + other * b);
        match self {
            Self::Centroid => (sum - own * other * between / whole) / whole,
            Self::Average => sum / whole,
        }
    }

    fn is_near(self, distance: f64, threshold: f64) -> bool {
        match self {
            Self::Centroid => distance.max(0.0).sqrt() <= threshold,
            Self::Average => distance <= threshold,
        }
    }
}

/// A vector brought to length 1.
pub(super) fn unit(vector: &[f32]) -> Vec<f64> {
    let length = vector.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    vector.iter().map(|&x| if length > 0.0 { f64::from(x) / length } else { 0.0 }).collect()
}

/// The group of each vector of length 1: agglomerative clustering, as `linkage` and `fcluster` of SciPy do it.
pub(super) fn groups(vectors: &[Vec<f64>], linkage: Linkage, threshold: f64) -> Vec<usize> {
    let count = vectors.len();
    let mut distances = Distances::new(vectors, linkage);
    let mut groups: Vec<usize> = (0..count).collect();
    let mut sizes = vec![1usize; count];
    // The nearest group after each one.
    let mut nearest: Vec<Option<(f64, usize)>> = (0..count).map(|at| distances.nearest(at, &sizes)).collect();
    // A join beyond the threshold is in no group, nor is what it joins: those of later joins without it lie further apart.
    while let Some((distance, a, b)) = (0..count)
        .filter(|&at| sizes[at] > 0)
        .filter_map(|at| nearest[at].map(|(distance, other)| (distance, at, other)))
        .min_by(|one, other| one.0.total_cmp(&other.0))
        .filter(|(distance, ..)| linkage.is_near(*distance, threshold))
    {
        let own = [a, b].map(|at| sizes[at] as f64);
        sizes[b] += sizes[a];
        sizes[a] = 0;
        for at in (0..count).filter(|&at| sizes[at] > 0 && at != b) {
            let moved = linkage.joined(own, [a, b].map(|group| distances.of(group, at)), distance);
            distances.set(b, at, moved);
        }
        groups.iter_mut().filter(|group| **group == a).for_each(|group| *group = b);
        for at in (0..b).filter(|&at| sizes[at] > 0) {
            match nearest[at] {
                Some((_, other)) if other == a || other == b => nearest[at] = distances.nearest(at, &sizes),
                Some((distance, _)) if distances.of(at, b) < distance => {
                    nearest[at] = Some((distances.of(at, b), b))
                }
                _ => {}
            }
        }
        nearest[b] = distances.nearest(b, &sizes);
    }
    let mut names: Vec<usize> = groups.clone();
    names.sort_unstable();
    names.dedup();
    groups.iter().map(|group| names.partition_point(|name| name < group)).collect()
}

/// The distance of each two groups.
struct Distances {
    values: Vec<f64>,
    count: usize,
}

impl Distances {
    fn new(vectors: &[Vec<f64>], linkage: Linkage) -> Self {
        let count = vectors.len();
        let mut values = Vec::with_capacity(count * count.saturating_sub(1) / 2);
        for (at, vector) in vectors.iter().enumerate() {
            values.extend(
                vectors[at + 1..]
                    .iter()
                    .map(|other| vector.iter().zip(other).map(|(a, b)| (a - b) * (a - b)).sum::<f64>())
                    .map(|square| linkage.of_square(square)),
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

    fn set(&mut self, a: usize, b: usize, distance: f64) {
        let place = self.place(a, b);
        self.values[place] = distance;
    }

    /// The nearest group after `at` that has a size.
    fn nearest(&self, at: usize, sizes: &[usize]) -> Option<(f64, usize)> {
        let others = (at + 1..self.count).filter(|&other| sizes[other] > 0);
        others.map(|other| (self.of(at, other), other)).min_by(|one, other| one.0.total_cmp(&other.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_vectors_are_one_group_and_a_chain_is_cut_by_its_centroids() {
        let at = |degrees: f32| vec![3.0 * degrees.to_radians().cos(), 3.0 * degrees.to_radians().sin()];
        let vectors: Vec<Vec<f32>> = [0.0, 90.0, 4.0, 96.0, 10.0, 200.0].map(at).to_vec();
        let vectors: Vec<Vec<f64>> = vectors.iter().map(|vector| unit(vector)).collect();
        for (linkage, near) in [(Linkage::Centroid, 0.3), (Linkage::Average, 0.05)] {
            assert_eq!(groups(&vectors, linkage, near), [1, 0, 1, 0, 1, 2]);
            assert_eq!(groups(&vectors, linkage, 0.0), [0, 1, 2, 3, 4, 5]);
            assert_eq!(groups(&vectors, linkage, 3.0), [0; 6]);
        }
    }
}
