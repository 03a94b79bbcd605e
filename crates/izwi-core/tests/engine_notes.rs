//! What is reported of a text that is said otherwise than it is written: markup and foreign languages.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest, GenerationParams, TextInput};
use izwi_types::TextNotes;

fn engine(model: SimulatedModel) -> Engine {
    let config = EngineCoreConfig::default();
    let executor = SimulatedExecutor::new(&config, model);
    Engine::with_executor(config, Box::new(executor)).unwrap()
}

fn request(text: &str) -> EngineCoreRequest {
    let params = GenerationParams { seed: Some(3), ..GenerationParams::default() };
    EngineCoreRequest::tts(text).with_params(params).with_streams_text(true)
}

/// The samples of a request, and its notes.
async fn speak(engine: &Engine, request: EngineCoreRequest) -> (Vec<f32>, TextNotes) {
    let (_, mut chunks) = engine.generate_streaming(request).await.unwrap();
    let (mut samples, mut notes) = (Vec::new(), None);
    while let Some(chunk) = chunks.recv().await {
        samples.extend(chunk.samples);
        notes.get_or_insert(chunk.notes);
    }
    (samples, notes.unwrap())
}

#[tokio::test]
async fn markup_that_is_not_obeyed_is_left_out_and_told_in_pieces_too() {
    let engine = engine(SimulatedModel { appends_text: true, ..SimulatedModel::default() });
    let (plain, nothing) = speak(&engine, request("Ready or not.")).await;
    assert_eq!(nothing, TextNotes::default());
    let marked = "<speak>Ready <emphasis level=\"strong\">or</emphasis> not.</speak>";
    let (samples, notes) = speak(&engine, request(marked)).await;
    assert_eq!(samples, plain);
    assert_eq!(notes.markup, ["<emphasis level=\"strong\">"]);

    // A mark may be cut anywhere. In a text that arrives while it is spoken, no mark is obeyed.
    let input = TextInput::new();
    let (_, mut chunks) =
        engine.generate_streaming(request("<speak>Ready <bre").with_text_input(input.clone())).await.unwrap();
    let (mut samples, mut told) = (Vec::new(), Vec::new());
    for piece in ["ak time=\"0.", "5s\"/>or not.", "</spe", "ak>"] {
        input.append(piece).unwrap();
    }
    input.finish().unwrap();
    while let Some(chunk) = chunks.recv().await {
        samples.extend(chunk.samples);
        told.extend(chunk.notes.markup);
    }
    told.extend(input.take_markup());
    let marks = ["<speak>", "<break time=\"0.5s\"/>", "</speak>"];
    assert_eq!((samples, told), (plain, marks.map(str::to_owned).to_vec()));
}

#[tokio::test]
async fn a_text_of_markup_alone_is_refused_by_name() {
    let engine = engine(SimulatedModel::default());
    let refused = engine.generate(request("<break time=\"1s\"/> [pause]")).await.unwrap_err().to_string();
    assert!(
        refused.contains("input is markup alone") && refused.contains("<break time=\"1s\"/>"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_language_that_the_model_does_not_speak_is_told() {
    let engine = engine(SimulatedModel::default());
    for (text, foreign) in
        [("Hello.", &[][..]), ("Привет, мир.", &["ru"]), ("She said 你好 and left.", &["zh"])]
    {
        let (_, notes) = speak(&engine, request(text)).await;
        assert_eq!(notes.foreign, foreign, "{text}");
    }
}

#[tokio::test]
async fn places_of_words_are_those_of_the_written_text() {
    let engine =
        engine(SimulatedModel { autoregressive: false, times_words: true, ..SimulatedModel::default() });
    let text = "One [pause 2s] two.";
    let (_, mut chunks) = engine.generate_streaming(request(text)).await.unwrap();
    let mut ends = Vec::new();
    while let Some(chunk) = chunks.recv().await {
        ends.extend(chunk.words.iter().map(|word| text[..word.text_end].trim_end().to_owned()));
    }
    assert_eq!(ends.last().unwrap(), text);
    assert!(ends.iter().any(|said| said.starts_with("One")), "{ends:?}");
}
