//! Parity of streams, chunk by chunk, with NeMo and with whole recordings.

use super::*;

#[derive(Debug, Deserialize)]
struct Chunk {
    out_frames: usize,
    tokens_total: usize,
}

#[derive(Debug, Deserialize)]
struct StreamCase {
    att_context_size: [usize; 2],
    chunks: Vec<Chunk>,
    tokens_streaming: Vec<u32>,
    tokens_offline: Vec<u32>,
    frames_offline: Vec<usize>,
    tokens_transcribe: Vec<u32>,
    text_streaming: String,
    timestamps_transcribe: Timestamps,
}

/// A recording that comes in chunks.
struct Incoming<'a> {
    mel: &'a Mel,
    at: usize,
    chunk: usize,
    stream: Stream,
    search: Search,
    encoded: Vec<f32>,
}

impl<'a> Incoming<'a> {
    /// The frames of the next chunk.
    fn next(&self) -> Mel {
        let frames = FRAMES_PER_ROW * self.chunk - if self.at == 0 { FRAMES_PER_ROW - 1 } else { 0 };
        self.mel.part(self.at..self.mel.frames.min(self.at + frames))
    }

    fn new(model: &Parakeet, mel: &'a Mel, chunk: usize) -> Self {
        let search = transducer(model).begin().unwrap();
        Self { mel, at: 0, chunk, stream: model.encoder.stream(chunk), search, encoded: Vec::new() }
    }
}

fn transducer(model: &Parakeet) -> &Transducer {
    let Head::Transducer(transducer) = &model.head else { panic!("a transducer") };
    transducer
}

/// The next chunk of each recording that has one; whether there was any.
fn step(model: &Parakeet, recordings: &mut [&mut Incoming<'_>]) -> bool {
    let mut open: Vec<_> =
        recordings.iter_mut().filter(|incoming| incoming.at < incoming.mel.frames).collect();
    if open.is_empty() {
        return false;
    }
    let pieces: Vec<Mel> = open.iter().map(|incoming| incoming.next()).collect();
    let before: Vec<usize> = open.iter().map(|incoming| incoming.stream.rows()).collect();
    let mut streams: Vec<&mut Stream> = open.iter_mut().map(|incoming| &mut incoming.stream).collect();
    let encoded = model.encoder.advance(&pieces.iter().collect::<Vec<_>>(), &mut streams).unwrap();
    let counts: Vec<usize> =
        open.iter().zip(before).map(|(incoming, before)| incoming.stream.rows() - before).collect();
    let mut searches: Vec<&mut Search> = open.iter_mut().map(|incoming| &mut incoming.search).collect();
    transducer(model).advance(&encoded, &counts, &mut searches).unwrap();
    let mut start = 0;
    for ((incoming, piece), count) in open.iter_mut().zip(pieces).zip(counts) {
        incoming.at += piece.frames;
        incoming.encoded.extend(values(&encoded.narrow(0, start, count).unwrap()));
        start += count;
    }
    true
}

fn stream_mel() -> Mel {
    let mel = by_rows(&SET.tensors("stream.audio")["mel"]);
    Mel { frames: mel.dim(0).unwrap(), values: values(&mel) }
}

#[test]
fn parakeet_golden_stream_mel() {
    let (model, golden) = (model("stream"), SET.tensors("stream.audio"));
    let mel = model.front_end.frames(&values(&golden["audio"]));
    assert_eq!(mel.frames, ids(&golden["mel_len"])[0] as usize);
    let theirs = by_rows(&golden["mel"]).narrow(0, 0, mel.frames).unwrap();
    compare("stream mel", &mel.values, &values(&theirs), TOLERANCE);
}

#[test]
fn parakeet_golden_stream_chunks() {
    let (model, mel) = (model("stream"), stream_mel());
    for right in [5, 1, 0] {
        let name = format!("stream.r{right}");
        let (golden, expected) = (SET.tensors(&name), SET.json::<StreamCase>(&name));
        let chunk = expected.att_context_size[1] + 1;
        let offline = values(&by_rows(&golden["offline_encoded"]));
        let width = offline.len() / ids(&golden["offline_encoded_len"])[0] as usize;
        let mut incoming = Incoming::new(&model, &mel, chunk);
        for (index, theirs) in expected.chunks.iter().enumerate() {
            let from = incoming.encoded.len();
            assert!(step(&model, &mut [&mut incoming]), "{name}");
            let ours = &incoming.encoded[from..];
            assert_eq!(ours.len(), theirs.out_frames * width, "{name} chunk {index}");
            compare(&format!("{name} chunk {index}"), ours, &offline[from..][..ours.len()], TOLERANCE);
            // The reference's own stream is off its offline result where it lacks frames before the second chunk.
            if chunk > 1 {
                let encoded = values(&by_rows(&golden[&format!("c{index}.encoded")]));
                compare(&format!("{name} chunk {index}"), ours, &encoded, TOLERANCE);
                assert_eq!(incoming.search.found.len(), theirs.tokens_total, "{name} chunk {index}");
                if let Some(cache) = golden.get(&format!("c{index}.cache_last_time")) {
                    for (layer, ours) in incoming.stream.inputs().enumerate() {
                        let theirs = by_rows(&cache.get(layer).unwrap());
                        let name = format!("{name} chunk {index} layer {layer}");
                        compare(&name, &values(ours), &values(&theirs), TOLERANCE);
                    }
                }
            }
        }
        assert!(!step(&model, &mut [&mut incoming]), "{name}");
        let found = &incoming.search.found;
        assert_eq!(tokens(found), expected.tokens_offline, "{name}");
        let starts: Vec<usize> = found.iter().map(|token| token.start).collect();
        assert_eq!(starts, expected.frames_offline, "{name}");
        if chunk > 1 {
            assert_eq!(tokens(found), expected.tokens_streaming, "{name}");
            assert_eq!(model.vocabulary.decode(&tokens(found)), expected.text_streaming, "{name}");
        }
        let ours = transducer(&model).decisions(&tensor_of(&incoming.encoded, width));
        let frames: Vec<u32> = ours.iter().map(|(frame, _)| *frame as u32).collect();
        assert_eq!(frames, ids(&golden["step_frame"]), "{name}");
        let logits: Vec<f32> = ours.into_iter().flat_map(|(_, logits)| logits).collect();
        compare(&format!("{name} logits"), &logits, &values(&golden["step_logits"]), TOLERANCE);
    }
}

fn tensor_of(values: &[f32], width: usize) -> Tensor {
    Tensor::from_slice(values, (values.len() / width, width), &golden_set::device()).unwrap()
}

#[test]
fn parakeet_golden_stream_offline_equals_chunks() {
    let model = model("stream");
    let audio = SET.tensors("stream.audio");
    let mel = model.front_end.frames(&values(&audio["audio"]));
    for right in [5, 1, 0] {
        let name = format!("stream.r{right}");
        let (golden, expected) = (SET.tensors(&name), SET.json::<StreamCase>(&name));
        let mut stream = model.encoder.stream(expected.att_context_size[1] + 1);
        let encoded = model.encoder.advance(&[&mel], &mut [&mut stream]).unwrap();
        let rows = ids(&golden["offline_valid_len"])[0] as usize;
        assert_eq!((stream.rows(), model.rows(&mel)), (rows, rows), "{name}");
        let theirs = by_rows(&golden["offline_valid_encoded"]).narrow(0, 0, rows).unwrap();
        compare(&name, &values(&encoded), &values(&theirs), TOLERANCE);
        let mut incoming = Incoming::new(&model, &mel, expected.att_context_size[1] + 1);
        while step(&model, &mut [&mut incoming]) {}
        golden_set::assert_same(&name, &incoming.encoded, &values(&encoded));
        let case = Case {
            text: model.vocabulary.decode(&expected.tokens_transcribe),
            tokens: expected.tokens_transcribe,
            frames: Vec::new(),
            durations: Vec::new(),
            timestamps: expected.timestamps_transcribe,
        };
        check_text(&model, incoming.search.found, &case, &name);
        if model.chunks[0] == expected.att_context_size[1] + 1 {
            check_text(&model, model.transcribe(&[&mel], &[None]).unwrap().remove(0), &case, &name);
        }
    }
    let golden = SET.tensors("stream.r5");
    let mel = stream_mel();
    let mut compared = 0;
    let tap = |name: &str, x: &Tensor, _: &_| {
        if let Some(theirs) = golden.get(name) {
            compare(name, &values(x), &values(theirs), TOLERANCE);
            compared += 1;
        }
        Ok(())
    };
    model.encoder.forward_tapped(&[&mel], tap).unwrap();
    assert!(compared >= 3);
}

#[test]
fn parakeet_golden_streams_of_one_batch_equal_each_alone() {
    let (model, mel) = (model("stream"), stream_mel());
    let later = mel.part(40..mel.frames);
    let chunk = |index: usize| model.chunks[index % model.chunks.len()];
    let begin = || {
        [(&mel, 0), (&later, 1), (&later, 3), (&mel, 2), (&mel, 0)]
            .map(|(mel, index)| Incoming::new(&model, mel, chunk(index)))
    };
    let mut together = begin();
    let (first, others) = together.split_at_mut(1);
    // The first begins before the others.
    step(&model, &mut [&mut first[0]]);
    let mut all: Vec<&mut Incoming<'_>> = first.iter_mut().chain(others).collect();
    while step(&model, &mut all) {}
    for (index, (mut alone, together)) in begin().into_iter().zip(&together).enumerate() {
        while step(&model, &mut [&mut alone]) {}
        golden_set::assert_same(&format!("stream {index}"), &alone.encoded, &together.encoded);
        assert_eq!(tokens(&alone.search.found), tokens(&together.search.found), "{index}");
    }
}
