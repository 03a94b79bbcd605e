//! Speakers by name, recognised by the speaker embeddings of a recording's turns ([`Segment::embedding`]). Knows no model.

use std::collections::BTreeMap;
use std::sync::Arc;

use izwi_types::Segment;

/// The least cosine similarity of two embeddings of one speaker. Of the speakers of 14 meetings of 30 voices, clean, with noise, in rooms and over
/// the telephone, 53 pairs of one voice in two meetings are above it, and 0.6 % of 1,900 pairs of two voices.
const MIN_SIMILARITY: f64 = 0.55;

/// A speaker whose name is known.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownSpeaker {
    /// Name in results.
    pub name: Arc<str>,
    /// Embedding by the model that hears the recording.
    pub embedding: Arc<[f32]>,
}

/// The model makes no speaker embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the model makes no speaker embeddings, by which speakers are recognised")]
pub struct NoEmbeddings;

/// Cosine similarity of two embeddings; 0 if they have different lengths.
fn similarity(one: &[f32], other: &[f32]) -> f64 {
    if one.len() != other.len() {
        return 0.0;
    }
    let product =
        |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    let lengths = (product(one, one) * product(other, other)).sqrt();
    if lengths > 0.0 { product(one, other) / lengths } else { 0.0 }
}

/// Each speaker's seconds of speech and embedding.
type Speakers = BTreeMap<u32, (f64, Arc<[f32]>)>;

fn speakers(turns: &[Segment]) -> Result<Speakers, NoEmbeddings> {
    let mut speakers = Speakers::new();
    for turn in turns {
        let Some(speaker) = turn.speaker else { continue };
        let embedding = turn.embedding.as_ref().ok_or(NoEmbeddings)?;
        speakers.entry(speaker).or_insert_with(|| (0.0, Arc::clone(embedding))).0 +=
            turn.end_s - turn.start_s;
    }
    Ok(speakers)
}

/// The embedding of who speaks most; `None` if nobody speaks.
///
/// # Errors
/// The model makes no embeddings.
pub fn main_embedding(turns: &[Segment]) -> Result<Option<Arc<[f32]>>, NoEmbeddings> {
    let speakers = speakers(turns)?.into_values();
    Ok(speakers.max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, embedding)| embedding))
}

/// A known speaker, and how similar a voice is.
#[derive(Debug, Clone, PartialEq)]
pub struct Likeness {
    /// Name of the speaker.
    pub name: Arc<str>,
    /// Cosine similarity, -1 to 1.
    pub similarity: f64,
    /// Whether it is enough to take the voice for the speaker's.
    pub is_enough: bool,
}

/// How similar a voice is to that of each known speaker, the most similar first.
pub fn likenesses(embedding: &[f32], known: &[KnownSpeaker]) -> Vec<Likeness> {
    let likeness = |known: &KnownSpeaker| {
        let similarity = similarity(embedding, &known.embedding);
        Likeness { name: Arc::clone(&known.name), similarity, is_enough: similarity >= MIN_SIMILARITY }
    };
    let mut all: Vec<Likeness> = known.iter().map(likeness).collect();
    all.sort_by(|one, other| other.similarity.total_cmp(&one.similarity));
    all
}

/// Gives turns the names of known speakers: the most similar pairs first, each name and each speaker once, and none that is not similar
/// enough.
///
/// # Errors
/// The model makes no embeddings, and a name is asked for.
pub fn named(mut turns: Vec<Segment>, known: &[KnownSpeaker]) -> Result<Vec<Segment>, NoEmbeddings> {
    if known.is_empty() {
        return Ok(turns);
    }
    let embeddings = speakers(&turns)?.into_iter().map(|(speaker, (_, embedding))| (speaker, embedding));
    let names = names(&embeddings.collect(), known);
    for turn in &mut turns {
        turn.speaker_name = turn.speaker.and_then(|speaker| names.get(&speaker)).cloned();
    }
    Ok(turns)
}

/// The names of speakers, told by their embeddings, as [`named`] gives them.
pub fn names(embeddings: &BTreeMap<u32, Arc<[f32]>>, known: &[KnownSpeaker]) -> BTreeMap<u32, Arc<str>> {
    let pairs = embeddings.iter().flat_map(|(speaker, embedding)| {
        known.iter().enumerate().map(|(at, known)| (similarity(embedding, &known.embedding), *speaker, at))
    });
    let mut pairs: Vec<(f64, u32, usize)> =
        pairs.filter(|(similarity, ..)| *similarity >= MIN_SIMILARITY).collect();
    pairs.sort_by(|one, other| other.0.total_cmp(&one.0));
    let mut names: BTreeMap<u32, usize> = BTreeMap::new();
    for (_, speaker, at) in pairs {
        if !names.contains_key(&speaker) && !names.values().any(|taken| *taken == at) {
            names.insert(speaker, at);
        }
    }
    names.into_iter().map(|(speaker, at)| (speaker, Arc::clone(&known[at].name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(start_s: f64, length_s: f64, speaker: u32, embedding: Option<&[f32]>) -> Segment {
        Segment {
            start_s,
            end_s: start_s + length_s,
            speaker: Some(speaker),
            embedding: embedding.map(Arc::from),
            ..Segment::default()
        }
    }

    fn known(name: &str, embedding: &[f32]) -> KnownSpeaker {
        KnownSpeaker { name: name.into(), embedding: embedding.into() }
    }

    fn meeting() -> Vec<Segment> {
        vec![
            turn(0.0, 1.0, 0, Some(&[1.0, 0.1, 0.0])),
            turn(1.0, 5.0, 1, Some(&[0.0, 1.0, 0.0])),
            turn(6.0, 1.0, 2, Some(&[0.0, 0.0, 1.0])),
            turn(7.0, 1.0, 0, Some(&[1.0, 0.1, 0.0])),
        ]
    }

    #[test]
    fn the_most_similar_known_speakers_give_their_names_once() {
        let names = |known: &[KnownSpeaker]| -> Vec<Option<String>> {
            let turns = named(meeting(), known).unwrap();
            turns.iter().map(|turn| turn.speaker_name.as_deref().map(str::to_owned)).collect()
        };
        let (ann, bob) = (known("Ann", &[2.0, 0.0, 0.0]), known("Bob", &[1.0, 1.0, 0.0]));
        let told = |all: [Option<&str>; 4]| all.map(|name| name.map(str::to_owned)).to_vec();
        assert_eq!(names(&[bob.clone(), ann]), told([Some("Ann"), Some("Bob"), None, Some("Ann")]));
        assert_eq!(names(&[bob]), told([Some("Bob"), None, None, Some("Bob")]), "the more similar of two");
        assert_eq!(names(&[known("Eve", &[-1.0, -1.0, -1.0]), known("Max", &[1.0])]), told([None; 4]));
        assert_eq!(main_embedding(&meeting()).unwrap().as_deref(), Some(&[0.0, 1.0, 0.0][..]));
        assert_eq!(main_embedding(&[]), Ok(None));
        let all =
            likenesses(&[1.0, 1.0, 0.0], &[known("Eve", &[-1.0, 0.0, 0.0]), known("Max", &[3.0, 3.0, 0.0])]);
        let all: Vec<(&str, bool)> = all.iter().map(|one| (&*one.name, one.is_enough)).collect();
        assert_eq!(all, [("Max", true), ("Eve", false)]);
    }

    #[test]
    fn without_embeddings_nobody_is_recognised() {
        let turns = || vec![turn(0.0, 1.0, 0, None), turn(1.0, 1.0, 1, None)];
        assert_eq!(named(turns(), &[known("Ann", &[1.0])]), Err(NoEmbeddings));
        assert_eq!(named(turns(), &[]), Ok(turns()));
        assert_eq!(main_embedding(&turns()), Err(NoEmbeddings));
    }
}
