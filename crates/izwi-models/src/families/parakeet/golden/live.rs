//! Audio that is appended in pieces gives the tokens and times of the whole recording, beside any others.

use super::*;
use izwi_types::AudioProgress;

/// A recording that arrives in pieces.
struct Incoming<'a> {
    prepared: Prepared,
    state: SequenceState,
    start: usize,
    positions: usize,
    /// What has not arrived.
    rest: &'a [f32],
    /// Sizes of the pieces, repeated.
    sizes: &'a [usize],
    pieces: usize,
    finished: bool,
    segments: Vec<Segment>,
    partials: usize,
    most_waiting: usize,
}

impl<'a> Incoming<'a> {
    fn new(model: &Parakeet, chunk_ms: u32, samples: &'a [f32], sizes: &'a [usize]) -> Self {
        let mut input = ListenInput::plain([].into());
        (input.chunk_ms, input.options) = (Some(chunk_ms), input.options.with_words().with_logprobs());
        let prepared = model.prepare(&Input::Listen(input), &LIMITS).unwrap();
        Self {
            state: model.start(&prepared),
            prepared,
            start: 0,
            positions: 0,
            rest: samples,
            sizes,
            pieces: 0,
            finished: false,
            segments: Vec::new(),
            partials: 0,
            most_waiting: 0,
        }
    }

    /// Appends the next piece; the end comes by itself.
    fn arrive(&mut self, model: &Parakeet) {
        if self.positions > self.start {
            return;
        }
        let size = self.sizes[self.pieces % self.sizes.len()].min(self.rest.len());
        let (piece, rest) = self.rest.split_at(size);
        let is_last = piece.is_empty();
        let AudioProgress { positions, waiting } =
            model.append_audio(&self.prepared, piece, is_last).unwrap();
        assert!(positions >= self.positions && (positions > self.start || !is_last));
        (self.rest, self.positions) = (rest, positions);
        self.most_waiting = self.most_waiting.max(waiting);
        self.pieces += 1;
    }

    fn tokens(&self) -> Vec<u32> {
        self.segments.iter().flat_map(|segment| segment.tokens.clone()).collect()
    }

    fn words(&self) -> Vec<Word> {
        compared(self.segments.iter().flat_map(|segment| segment.words.clone()).collect())
    }
}

/// Words without their probabilities where bits are not promised.
fn compared(mut words: Vec<Word>) -> Vec<Word> {
    if !golden_set::is_bit_exact() {
        words.iter_mut().for_each(|word| word.probability = 0.0);
    }
    words
}

/// One step of all that have something to compute; whether any goes on.
fn step(model: &Parakeet, all: &mut [Incoming<'_>]) -> bool {
    all.iter_mut().filter(|one| !one.finished).for_each(|one| one.arrive(model));
    let mut due: Vec<&mut Incoming<'_>> =
        all.iter_mut().filter(|one| !one.finished && one.positions > one.start).collect();
    let mut entries: Vec<BatchEntry<'_>> = due
        .iter_mut()
        .map(|one| {
            let Work::Chunks { longest, .. } = one.prepared.work else { panic!("{:?}", one.prepared.work) };
            BatchEntry {
                prepared: &one.prepared,
                state: &mut one.state,
                start: one.start,
                begins: one.start == 0,
                num_tokens: (one.positions - one.start).min(longest),
                block_table: &[],
                branch_tables: &[],
            }
        })
        .collect();
    let computed: Vec<usize> = entries.iter().map(|entry| entry.num_tokens).collect();
    let mut kv = KvPool::new(None, 1, 8, &golden_set::device()).unwrap();
    let outputs = model.forward(&mut kv, &mut entries).unwrap();
    for ((one, output), computed) in due.into_iter().zip(outputs).zip(computed) {
        let output = output.unwrap();
        let texts: String = output.segments.iter().map(|segment| segment.text.as_str()).collect();
        assert_eq!(output.text, texts);
        assert!(output.partial.is_empty() || !output.finished);
        one.start += computed;
        one.segments.extend(output.segments);
        one.finished = output.finished;
        one.partials += usize::from(!output.partial.is_empty());
    }
    all.iter().any(|one| !one.finished)
}

/// The words and tokens of a whole recording.
fn whole(model: &Parakeet, chunk_ms: u32, samples: &[f32]) -> Segment {
    let Head::Transducer(transducer) = &model.head else { panic!("a transducer") };
    let mel = model.front_end.frames(samples);
    if mel.frames == 0 {
        return Segment::default();
    }
    let mut stream = model.encoder.stream(chunk_ms as usize / 80);
    let encoded = model.encoder.advance(&[&mel], &mut [&mut stream]).unwrap();
    let mut tokens = transducer.decode(&encoded, &[stream.rows()], &[None]).unwrap().remove(0);
    tokens.retain(|token| !model.vocabulary.is_special(token.token));
    if model.head.settles_marks() {
        model.vocabulary.settle(&mut tokens);
    }
    let words = model.vocabulary.words(&tokens);
    segment(Wants { words: true, logprobs: false }, 0, &words)
}

fn audio() -> Vec<f32> {
    values(&SET.tensors("stream.audio")["audio"])
}

#[test]
fn parakeet_golden_live_audio_in_any_pieces_equals_the_recording() {
    let (model, once) = (model("stream"), audio());
    assert_eq!(model.info.chunks_ms.len(), model.chunks.len());
    let samples: Vec<f32> = once.iter().copied().cycle().take(3 * once.len() + 77).collect();
    for &chunk_ms in &model.info.chunks_ms {
        let expected = whole(&model, chunk_ms, &samples);
        assert!(expected.tokens.len() > 10 && !expected.words.is_empty(), "{expected:?}");
        let sizes: [&[usize]; 5] = [&[41], &[1_280], &[usize::MAX], &[7, 160, 3_333, 1, 0x8000], &[16_001]];
        for sizes in sizes {
            let mut one = [Incoming::new(&model, chunk_ms, &samples, sizes)];
            while step(&model, &mut one) {}
            assert_eq!(one[0].words(), compared(expected.words.clone()), "{chunk_ms} ms, {sizes:?}");
            assert_eq!(one[0].tokens(), expected.tokens, "{chunk_ms} ms, {sizes:?}");
            assert!(one[0].partials > 0 || sizes == [usize::MAX], "{chunk_ms} ms, {sizes:?}");
            // A chunk, and what the next frame is made of.
            let most = chunk_ms as usize * 16 + 2 * 512 + sizes.iter().max().unwrap().min(&samples.len());
            assert!(one[0].most_waiting <= most, "{} of {most}", one[0].most_waiting);
        }
    }
}

#[test]
fn parakeet_golden_live_audio_may_end_anywhere() {
    let (model, samples) = (model("stream"), audio());
    let chunk_ms = model.info.chunks_ms[0];
    for length in (0..2_000).step_by(80).chain([159, 161, 199, 201, 7_681, 7_880, 7_881, 7_920]) {
        let part = &samples[..length.min(samples.len())];
        let mut one = [Incoming::new(&model, chunk_ms, part, &[500])];
        while step(&model, &mut one) {}
        assert_eq!(one[0].words(), compared(whole(&model, chunk_ms, part).words), "{length} samples");
    }
}

#[test]
fn parakeet_golden_live_recordings_of_one_batch_equal_each_alone() {
    let (model, samples) = (model("stream"), audio());
    let sizes: [&[usize]; 3] = [&[1_280], &[801, 3], &[5_000, 77]];
    let begin = |n: usize| {
        let chunk_ms = model.info.chunks_ms[n % model.info.chunks_ms.len()];
        Incoming::new(&model, chunk_ms, &samples[137 * n..], sizes[n % sizes.len()])
    };
    let mut together: Vec<_> = (0..24).map(begin).collect();
    // Some begin before the others, and one leaves early.
    step(&model, &mut together[..7]);
    step(&model, &mut together[3..]);
    drop(together.pop());
    while step(&model, &mut together) {}
    for (n, together) in together.iter().enumerate() {
        let mut alone = [begin(n)];
        while step(&model, &mut alone) {}
        assert_eq!((alone[0].tokens(), alone[0].words()), (together.tokens(), together.words()), "{n}");
        assert!(!golden_set::is_bit_exact() || alone[0].segments == together.segments, "{n}");
    }
}

#[test]
fn parakeet_golden_live_inputs_that_cannot_be_taken_are_refused() {
    let refusal = |model: &Parakeet, chunk_ms| {
        let input = ListenInput { chunk_ms: Some(chunk_ms), ..ListenInput::plain([].into()) };
        model.prepare(&Input::Listen(input), &LIMITS).unwrap_err().to_string()
    };
    let chunked = model("stream");
    assert!(refusal(&chunked, 81).contains("chunks of 81 ms"), "{}", refusal(&chunked, 81));
    let whole = model("tdt");
    assert!(whole.info.chunks_ms.is_empty() && refusal(&whole, 80).contains("80 ms"));
    let prepared = whole.prepare(&Input::Listen(ListenInput::plain([0.0; 1_600].into())), &LIMITS).unwrap();
    assert_eq!(whole.append_audio(&prepared, &[0.0], false).unwrap_err().param, "audio");
    let samples = audio();
    let mut one = Incoming::new(&chunked, chunked.info.chunks_ms[0], &samples, &[usize::MAX]);
    step(&chunked, std::slice::from_mut(&mut one));
    step(&chunked, std::slice::from_mut(&mut one));
    // A recording that starts again has no audio.
    let entry = BatchEntry {
        prepared: &one.prepared,
        state: &mut one.state,
        start: 0,
        begins: true,
        num_tokens: 14,
        block_table: &[],
        branch_tables: &[],
    };
    let mut kv = KvPool::new(None, 1, 8, &golden_set::device()).unwrap();
    let error = chunked.forward(&mut kv, &mut [entry]).unwrap().remove(0).unwrap_err();
    assert!(error.to_string().contains("starts again"), "{error}");
    assert!(chunked.append_audio(&one.prepared, &[0.0], false).is_err(), "it has ended");
}
