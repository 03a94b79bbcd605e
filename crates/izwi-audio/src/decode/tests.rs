//! Whole files: all formats, all kinds of WAV, limits, damage.

use std::f64::consts::TAU;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::pcm_format::PcmEncoding;
use crate::pcm_input::PcmInput;

#[path = "../../testdata/generated.rs"]
mod generated;

use generated::{Silence, chained_ogg, silent_flac};

const LIMITS: DecodeLimits = DecodeLimits { max_bytes: 1 << 20, max_duration: Duration::from_secs(10) };

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../../testdata/", $name)).as_slice())),*]
    };
}

type File = (&'static str, &'static [u8]);

/// Tones of 1 kHz at amplitude 0.354.
const TONES: &[File] = files![
    "tone.mp3",
    "tone.ogg",
    "tone.m4a",
    "tone-alac.m4a",
    "tone.flac",
    "tone-vorbis.webm",
    "tone.opus",
    "tone.webm",
    "tone.aac",
    "tone-adpcm.wav",
    "tone.aiff",
    "tone.caf",
];
const OTHERS: &[File] =
    files!["ac3.m4a", "silent-picture.mkv", "speech-silk.opus", "speech-silk.reference.flac"];

fn file(name: &str) -> &'static [u8] {
    TONES.iter().chain(OTHERS).find(|(n, _)| *n == name).unwrap().1
}

fn samples_of(bytes: &[u8]) -> Result<Vec<f32>, DecodeError> {
    decode(bytes.to_vec(), 16_000, &LIMITS)
}

/// Amplitude of the part of `signal` that is a sine of `hz`, and the RMS of all else.
fn tone_and_rest(signal: &[f32], hz: f64, rate_hz: f64) -> (f64, f64) {
    let (mut re, mut im, n) = (0.0, 0.0, signal.len() as f64);
    for (i, &s) in signal.iter().enumerate() {
        let angle = TAU * hz * i as f64 / rate_hz;
        re += f64::from(s) * angle.cos() * 2.0 / n;
        im += f64::from(s) * angle.sin() * 2.0 / n;
    }
    let rest = signal.iter().enumerate().map(|(i, &s)| {
        let angle = TAU * hz * i as f64 / rate_hz;
        (f64::from(s) - re * angle.cos() - im * angle.sin()).powi(2)
    });
    (re.hypot(im), (rest.sum::<f64>() / n).sqrt())
}

#[test]
fn every_format_decodes_to_its_tone() {
    for (name, bytes) in TONES {
        for rate_hz in [16_000, 24_000, 48_000] {
            let samples = decode(*bytes, rate_hz, &LIMITS).unwrap();
            let rate = f64::from(rate_hz);
            let seconds = samples.len() as f64 / rate;
            let length = if name.ends_with("aiff") || name.ends_with("caf") { 0.4 } else { 1.0 };
            // One frame of AAC more, its encoder's delay, which MP4 and ADTS players leave in.
            assert!((seconds - length).abs() < 0.047, "{name}: {seconds} s");
            let middle = &samples[(0.1 * rate) as usize..(0.35 * rate) as usize];
            let (tone, rest) = tone_and_rest(middle, 1000.0, rate);
            assert!((tone - 0.3535).abs() < 0.02, "{name}: amplitude {tone}");
            assert!(rest < 0.02, "{name}: {rest} remains beside the tone");
        }
    }
    for name in ["tone.mp3", "tone.ogg", "tone.opus", "tone.flac", "tone-alac.m4a"] {
        assert_eq!(samples_of(file(name)).unwrap().len(), 16_000, "{name} removes its padding");
    }
}

#[test]
fn opus_speech_equals_libopus() {
    const REFERENCE: usize = 9_600;
    let ours = samples_of(file("speech-silk.opus")).unwrap();
    let reference = samples_of(file("speech-silk.reference.flac")).unwrap();
    assert_eq!((ours.len(), reference.len()), (19_200, REFERENCE));
    let ours = &ours[..REFERENCE - 100];
    let power = |signal: &mut dyn Iterator<Item = f32>| signal.map(|s| f64::from(s).powi(2)).sum::<f64>();
    let error = power(&mut ours.iter().zip(&reference).map(|(a, b)| a - b));
    let snr_db = 10.0 * (power(&mut reference.iter().copied()) / error).log10();
    assert!(snr_db > 40.0, "{snr_db} dB");
}

#[test]
fn speech_is_found_and_silence_is_not() {
    let mut samples = vec![0.0; 32_000];
    samples.extend(samples_of(file("speech-silk.opus")).unwrap());
    samples.extend([0.0; 32_000]);
    let quiet: Vec<f32> = samples.iter().map(|s| s * 0.005).collect();
    for signal in [samples, quiet] {
        let spans = crate::vad::VadModel::default().speech_spans(&signal, &Default::default());
        assert_eq!(spans.len(), 1, "{spans:?}");
        assert!(spans[0].start > 24_000 && spans[0].start < 36_000, "{spans:?}");
        assert!(spans[0].end > 46_000 && spans[0].end < 62_000, "{spans:?}");
    }
    for silence in [vec![0.0; 100_000], vec![0.3; 100_000], vec![f32::NAN; 5000]] {
        assert_eq!(crate::vad::VadModel::default().speech_spans(&silence, &Default::default()), []);
    }
}

#[test]
fn unsupported_formats_are_named() {
    for (bytes, part) in [
        (file("ac3.m4a"), "ac-3"),
        (file("silent-picture.mkv"), "without an audio track"),
        (b"%PDF-1.7 and so on and on and on".as_slice(), "25 50 44 46"),
        (b"RIFX\0\0\0\0WAVEfmt ", "RIFX"),
        (&wav(Fmt { tag: 0x55, ..PCM16 }, &[0; 400]), "codec 0x0055"),
        (&wav(Fmt { bits: 64, ..PCM16 }, &[0; 400]), "64 bits"),
    ] {
        let error = samples_of(bytes).unwrap_err();
        let named = error.to_string().contains(part);
        assert!(matches!(error, DecodeError::UnknownFormat(_)) && named, "{error}");
    }
    assert_eq!(samples_of(b""), Err(DecodeError::Empty));
}

#[derive(Clone, Copy)]
struct Fmt {
    tag: u16,
    channels: u16,
    rate_hz: u32,
    bits: u16,
}

const PCM16: Fmt = Fmt { tag: 1, channels: 1, rate_hz: 16_000, bits: 16 };

fn chunk(id: &[u8; 4], body: &[u8]) -> Vec<u8> {
    let mut out = id.to_vec();
    out.extend((body.len() as u32).to_le_bytes());
    out.extend(body);
    out.extend(vec![0; body.len() % 2]);
    out
}

fn fmt(f: Fmt) -> Vec<u8> {
    let align = f.channels.wrapping_mul(f.bits / 8);
    let mut body = Vec::new();
    body.extend(f.tag.to_le_bytes());
    body.extend(f.channels.to_le_bytes());
    body.extend(f.rate_hz.to_le_bytes());
    body.extend(f.rate_hz.wrapping_mul(u32::from(align)).to_le_bytes());
    body.extend(align.to_le_bytes());
    body.extend(f.bits.to_le_bytes());
    body
}

fn riff(chunks: &[Vec<u8>]) -> Vec<u8> {
    let body = [b"WAVE".to_vec(), chunks.concat()].concat();
    chunk(b"RIFF", &body)
}

fn wav(f: Fmt, data: &[u8]) -> Vec<u8> {
    riff(&[chunk(b"fmt ", &fmt(f)), chunk(b"data", data)])
}

fn ramp() -> Vec<f32> {
    (0..400).map(|i| i as f32 / 200.0 - 1.0).collect()
}

fn ramp16() -> Vec<u8> {
    ramp().iter().flat_map(|s| ((s * 32768.0) as i16).to_le_bytes()).collect()
}

fn check_ramp(bytes: &[u8], tolerance: f32, what: &str) {
    let out = samples_of(bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(out.len(), 400, "{what}");
    for (got, want) in out.iter().zip(ramp()) {
        assert!((got - want).abs() <= tolerance, "{what}: {got} for {want}");
    }
}

#[test]
fn every_sample_type_of_wav() {
    let bytes_of = |to: &dyn Fn(f32) -> Vec<u8>| ramp().into_iter().flat_map(to).collect::<Vec<u8>>();
    let u8s = bytes_of(&|s| vec![(s * 128.0 + 128.0) as u8]);
    let i24 = bytes_of(&|s| ((s * 8_388_608.0) as i32).to_le_bytes()[..3].to_vec());
    let i32s = bytes_of(&|s| ((f64::from(s) * 2_147_483_648.0) as i32).to_le_bytes().to_vec());
    let f32s = bytes_of(&|s| s.to_le_bytes().to_vec());
    let f64s = bytes_of(&|s| f64::from(s).to_le_bytes().to_vec());
    for (tag, bits, data, tolerance) in [
        (1, 8, &u8s, 0.01),
        (1, 16, &ramp16(), 1e-4),
        (1, 24, &i24, 1e-6),
        (1, 20, &i24, 1e-6),
        (1, 32, &i32s, 1e-6),
        (3, 32, &f32s, 0.0),
        (3, 64, &f64s, 0.0),
    ] {
        check_ramp(&wav(Fmt { tag, bits, ..PCM16 }, data), tolerance, &format!("{tag} {bits}"));
        let mut extensible = fmt(Fmt { tag: 0xfffe, bits, ..PCM16 });
        extensible.extend([22, 0, bits as u8, 0, 0, 0, 0, 0, tag as u8, 0]);
        extensible.extend([0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71]);
        let file = riff(&[chunk(b"fmt ", &extensible), chunk(b"data", data)]);
        check_ramp(&file, tolerance, &format!("extensible {tag} {bits}"));
    }
    // Codes and values: ITU-T G.711, tables 1a and 2a, at 16 bits.
    let a_law = samples_of(&wav(Fmt { tag: 6, bits: 8, ..PCM16 }, &[0xd5, 0x55, 0xaa, 0x2a])).unwrap();
    assert_eq!(a_law, [8.0, -8.0, 32256.0, -32256.0].map(|s: f32| s / 32768.0));
    let mu_law = samples_of(&wav(Fmt { tag: 7, bits: 8, ..PCM16 }, &[0xff, 0x80, 0x00])).unwrap();
    assert_eq!(mu_law, [0.0, 32124.0, -32124.0].map(|s: f32| s / 32768.0));
}

#[test]
fn irregular_headers_are_repaired() {
    let (f, d) = (chunk(b"fmt ", &fmt(PCM16)), chunk(b"data", &ramp16()));
    let (list, odd) = (chunk(b"LIST", b"INFOISFT\x04\0\0\0abc\0"), chunk(b"junk", b"odd"));
    check_ramp(
        &riff(&[list.clone(), odd.clone(), f.clone(), list.clone(), d.clone(), list.clone()]),
        1e-4,
        "lists",
    );
    check_ramp(&riff(&[d.clone(), odd, f.clone()]), 1e-4, "data before fmt");
    let with_size = |riff_size: u32, data_size: u32| {
        let mut file = riff(&[f.clone(), d.clone()]);
        file[4..8].copy_from_slice(&riff_size.to_le_bytes());
        file[40..44].copy_from_slice(&data_size.to_le_bytes());
        file
    };
    for (riff_size, data_size) in
        [(0, 0), (u32::MAX, u32::MAX), (836, 0), (836, 5000), (20, 800), (u32::MAX, 0x7fff_ffff)]
    {
        check_ramp(&with_size(riff_size, data_size), 1e-4, &format!("sizes {riff_size} {data_size}"));
    }
    assert_eq!(samples_of(&with_size(836, 200)).unwrap().len(), 100, "a shorter chunk ends the samples");
    let mut rf64 = with_size(u32::MAX, u32::MAX);
    rf64[..4].copy_from_slice(b"RF64");
    check_ramp(&rf64, 1e-4, "rf64");
    let six: Vec<u8> = ramp16().chunks(2).flat_map(|s| s.repeat(6)).collect();
    check_ramp(&wav(Fmt { channels: 6, ..PCM16 }, &six), 1e-4, "six channels");
    let many: Vec<u8> = ramp16().chunks(2).flat_map(|s| s.repeat(18)).collect();
    check_ramp(&wav(Fmt { channels: 18, ..PCM16 }, &many), 1e-4, "18 channels");
    for empty in [wav(PCM16, &[]), wav(PCM16, &[1]), riff(&[f.clone(), chunk(b"data", &[]), list])] {
        assert_eq!(samples_of(&empty), Err(DecodeError::Empty));
    }
}

#[test]
fn floats_are_clamped_and_made_finite() {
    let floats = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 7.0, -7.0, 0.25];
    let data: Vec<u8> = floats.iter().flat_map(|s| s.to_le_bytes()).collect();
    let out = samples_of(&wav(Fmt { tag: 3, bits: 32, ..PCM16 }, &data)).unwrap();
    assert_eq!(out, [0.0, 0.0, 0.0, 1.0, -1.0, 0.25]);
    let out = decode(wav(Fmt { tag: 3, bits: 32, ..PCM16 }, &data.repeat(500)), 44_100, &LIMITS).unwrap();
    assert!(out.iter().all(|s| s.abs() <= 1.0));
}

#[test]
fn invalid_rates_and_channel_counts_are_named() {
    for (f, part) in [
        (Fmt { rate_hz: 0, ..PCM16 }, "of 0 Hz"),
        (Fmt { rate_hz: 1, ..PCM16 }, "of 1 Hz"),
        (Fmt { rate_hz: u32::MAX, ..PCM16 }, "4294967295 Hz"),
        (Fmt { channels: 0, ..PCM16 }, "0 channels"),
        (Fmt { channels: 33, ..PCM16 }, "33 channels"),
        (Fmt { channels: u16::MAX, ..PCM16 }, "65535 channels"),
    ] {
        let error = samples_of(&wav(f, &[0; 1000])).unwrap_err();
        assert!(matches!(&error, DecodeError::Damaged(what) if what.contains(part)), "{error}");
    }
    for rate_hz in [0, 999, 768_001] {
        assert!(matches!(decode(wav(PCM16, &[0; 8]), rate_hz, &LIMITS), Err(DecodeError::Damaged(_))));
    }
}

#[test]
fn limits_hold_while_decoding() {
    let tight = |max_bytes, ms| DecodeLimits { max_bytes, max_duration: Duration::from_millis(ms) };
    let tone = file("tone.mp3");
    assert!(matches!(decode(tone, 16_000, &tight(1000, 9000)), Err(DecodeError::TooLarge { limit: 1000 })));
    for (name, bytes) in TONES {
        let result = decode(*bytes, 16_000, &tight(1 << 20, 200));
        assert_eq!(result, Err(DecodeError::TooLong { limit_s: 0 }), "{name}");
    }
    assert_eq!(decode(file("tone.flac"), 16_000, &tight(1 << 20, 1000)).unwrap().len(), 16_000);
    // A megabyte of 8-bit samples at 1 kHz is 17 minutes.
    let slow = wav(Fmt { rate_hz: 1000, bits: 8, ..PCM16 }, &vec![128; 1_000_000]);
    assert_eq!(samples_of(&slow), Err(DecodeError::TooLong { limit_s: 10 }));
}

const SILENCE: Silence = Silence { rate_hz: 48_000, channels: 1, block: 4_800, frames: 1 };

/// `count` links of 0.1 s, whose rates alternate.
fn links(count: usize, rates: &[u32]) -> Vec<Silence> {
    let of = |rate_hz: u32| Silence { rate_hz, block: (rate_hz / 10) as u16, ..SILENCE };
    (0..count).map(|index| of(rates[index % rates.len()])).collect()
}

#[test]
fn generated_files_decode() {
    assert_eq!(samples_of(&silent_flac(Silence { frames: 7, ..SILENCE })).unwrap().len(), 11_200);
    assert_eq!(samples_of(&chained_ogg(&links(1, &[48_000]))).unwrap().len(), 1_600);
}

#[test]
fn a_chain_has_limited_links_and_changes_of_its_rate() {
    let long = DecodeLimits { max_duration: Duration::from_secs(600), ..LIMITS };
    let chain = |count, rates: &[u32]| decode(chained_ogg(&links(count, rates)), 16_000, &long);
    assert_eq!(chain(30, &[44_100, 48_000]).unwrap().len(), 30 * 1_600);
    assert_eq!(chain(20, &[8_000, 22_050, 24_000, 44_100, 48_000]).unwrap().len(), 20 * 1_600);
    assert_eq!(chain(200, &[48_000]).unwrap().len(), 200 * 1_600);
    for (count, rates, part) in
        [(300, &[48_000][..], "chain of more than 256"), (40, &[44_100, 48_000], "changes more than 32")]
    {
        let error = chain(count, rates).unwrap_err();
        assert!(matches!(error, DecodeError::TooComplex(_)), "{error}");
        assert!(error.to_string().contains(part) && error.to_string().contains("convert it"), "{error}");
    }
}

#[test]
fn the_work_of_a_file_is_bounded_by_its_size_and_the_longest_recording() {
    // Nine seconds of eight channels at the highest rate of FLAC, in 6 kB.
    let wide = silent_flac(Silence { rate_hz: 655_350, channels: 8, block: u16::MAX, frames: 90 });
    assert!(wide.len() < 7_000, "{} bytes", wide.len());
    let error = samples_of(&wide).unwrap_err();
    assert!(matches!(&error, DecodeError::TooComplex(what) if what.contains("samples")), "{error}");
    let usual = silent_flac(Silence { rate_hz: 96_000, channels: 2, block: 9_600, frames: 99 });
    assert_eq!(samples_of(&usual).unwrap().len(), 158_400);
}

#[test]
fn a_watch_counts_samples_before_they_are_kept_and_ends_the_decoding() {
    let limits = DecodeLimits { max_duration: Duration::from_secs(7_200), ..LIMITS };
    // Two hours, in 1.3 MB or less.
    let file = silent_flac(Silence { rate_hz: 16_000, channels: 1, block: 16_000, frames: 7_200 });
    let (mut calls, mut samples) = (0, 0);
    let result = decode_watched(file.clone(), None, 16_000, &limits, &mut |more| {
        calls += 1;
        samples += more;
        if samples > 160_000 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(result, Err(DecodeError::Stopped));
    assert_eq!((calls, samples), (22, 176_000), "a call before each packet, and one for its samples");
    let mut packets = 0;
    let result = decode_watched(file, None, 16_000, &limits, &mut |_| {
        packets += 1;
        if packets == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!((result, packets), (Err(DecodeError::Stopped), 5));
}

#[test]
fn a_transport_stream_is_not_taken_for_its_audio() {
    // Packets whose payload has the frames of an ADTS file.
    let adts = file("tone.aac");
    let mut stream = Vec::new();
    for (index, payload) in adts.chunks(184).enumerate() {
        stream.extend([0x47, 0x41, 0x00, 0x10 | (index % 16) as u8]);
        stream.extend(payload);
        stream.resize(188 * (index + 1), 0xff);
    }
    let error = samples_of(&stream).unwrap_err();
    assert!(matches!(&error, DecodeError::UnknownFormat(what) if what.contains("MPEG-TS")), "{error}");
    assert!(error.to_string().contains("send wav"), "{error}");
}

#[test]
fn damaged_packets_are_skipped() {
    for (name, expect) in [("tone.mp3", 12_000), ("tone.aac", 12_000), ("tone.flac", 8_000), ("tone.opus", 1)]
    {
        let mut bytes = file(name).to_vec();
        let middle = bytes.len() / 2;
        bytes[middle..middle + 40].fill(0x5a);
        match samples_of(&bytes) {
            Ok(samples) => assert!(samples.len() >= expect, "{name}: {}", samples.len()),
            Err(error) => assert_eq!(expect, 1, "{name}: {error}"),
        }
    }
}

#[test]
fn every_truncation_gives_a_result() {
    for (name, bytes) in TONES.iter().chain(OTHERS) {
        let step = if bytes.len() > 8000 { 37 } else { 7 };
        for length in (0..bytes.len()).filter(|l| *l < 600 || l % step == 0) {
            match samples_of(&bytes[..length]) {
                Ok(samples) => assert!(!samples.is_empty() && samples.len() < 17_000, "{name} at {length}"),
                Err(DecodeError::TooLarge { .. } | DecodeError::TooLong { .. } | DecodeError::Base64(_)) => {
                    panic!("{name} at {length}")
                }
                Err(_) => {}
            }
        }
    }
    for length in 0..844 {
        let _ = samples_of(&wav(PCM16, &ramp16())[..length]);
    }
}

/// Changes single bytes, runs of bytes and lengths at the places that the seeds select.
fn mutate(bytes: &mut Vec<u8>, edits: &[(u32, u8, u8)]) {
    for &(seed, value, kind) in edits {
        if bytes.is_empty() {
            return;
        }
        // Headers decide most: half of the edits hit the first 512 bytes.
        let reach = if kind & 1 == 0 { bytes.len() } else { bytes.len().min(512) };
        let at = seed as usize % reach;
        match kind % 7 {
            0..=2 => bytes[at] = value,
            3 => bytes[at] ^= 1 << (value % 8),
            4 => bytes.truncate(at.max(1)),
            5 => {
                let end = (at + 4).min(bytes.len());
                bytes[at..end].fill(if value < 128 { 0xff } else { 0 });
            }
            _ => {
                bytes.drain(at..(at + usize::from(value)).min(bytes.len()));
            }
        }
    }
}

pub(super) fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files_give_a_result(
        which in 0usize..TONES.len() + OTHERS.len(),
        edits in prop::collection::vec(any::<(u32, u8, u8)>(), 1..12),
    ) {
        let mut bytes = TONES.iter().chain(OTHERS).nth(which).unwrap().1.to_vec();
        mutate(&mut bytes, &edits);
        if let Ok(samples) = samples_of(&bytes) {
            prop_assert!(samples.iter().all(|s| s.is_finite() && s.abs() <= 1.0));
        }
    }

    #[test]
    fn mutated_wavs_give_a_result(
        tag in prop::sample::select(vec![1u16, 2, 3, 6, 7, 0x11, 0xfffe]),
        bits in prop::sample::select(vec![0u16, 4, 8, 16, 24, 32, 64]),
        edits in prop::collection::vec(any::<(u32, u8, u8)>(), 0..6),
    ) {
        let mut bytes = wav(Fmt { tag, bits, channels: 2, ..PCM16 }, &ramp16());
        mutate(&mut bytes, &edits);
        let _ = samples_of(&bytes);
    }

    #[test]
    fn random_bytes_give_a_result(
        magic in prop::sample::select(vec![
            &b""[..], b"RIFF\0\0\0\0WAVE", b"fLaC\0\0\0\x22", b"OggS\0\x02", b"ID3\x04\0\0", b"\xff\xfb\x90\x64",
            b"\x1a\x45\xdf\xa3", b"\0\0\0\x18ftypM4A ", b"FORM\0\0\0\0AIFF", b"caff\0\x01\0\0", b"\xff\xf1\x50\x80",
        ]),
        bytes in prop::collection::vec(any::<u8>(), 0..3000),
    ) {
        let _ = samples_of(&[magic, &bytes].concat());
    }
}

#[test]
fn samples_without_a_header_are_those_of_their_stream() {
    let bytes: Vec<u8> = (0..3_201u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let decode = |bytes: Vec<u8>, encoding, rate_hz| {
        let format = Some(PcmFormat { encoding, rate_hz });
        decode_watched(bytes, format, 16_000, &LIMITS, &mut |_| ControlFlow::Continue(()))
    };
    for encoding in [PcmEncoding::S16Le, PcmEncoding::MuLaw, PcmEncoding::ALaw] {
        let whole = decode(bytes.clone(), encoding, 16_000).unwrap();
        let mut streamed = Vec::new();
        let mut stream = PcmInput::new(encoding, 16_000).unwrap();
        stream.push(&bytes, &mut streamed).unwrap();
        stream.finish(&mut streamed).unwrap();
        assert_eq!(whole.len(), bytes.len() / encoding.sample_bytes());
        assert_eq!(&whole[..], streamed, "{encoding:?}");
        let slow = decode(bytes.clone(), encoding, 8_000).unwrap();
        assert!(slow.len().abs_diff(2 * whole.len()) < 8, "{} of {}", slow.len(), whole.len());
    }
    assert!(matches!(decode(vec![1], PcmEncoding::S16Le, 16_000), Err(DecodeError::Empty)));
    for rate_hz in [0, 999, 768_001, u32::MAX] {
        assert!(matches!(decode(bytes.clone(), PcmEncoding::S16Le, rate_hz), Err(DecodeError::Damaged(_))));
    }
    assert!(decode(vec![0; 1 << 21], PcmEncoding::MuLaw, 8_000).is_err());
}

#[test]
fn a_file_in_blocks_has_the_samples_of_one_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in TONES {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let (mut samples, mut blocks) = (Vec::new(), 0);
        let mut keep = |block: &[f32]| {
            samples.extend_from_slice(block);
            blocks += 1;
            ControlFlow::Continue(())
        };
        decode_blocks(std::fs::File::open(&path).unwrap(), 16_000, &LIMITS, &mut keep).unwrap();
        assert!(samples == samples_of(bytes).unwrap() && blocks > 1, "{name}: {blocks} blocks");
        let mut stop = |_: &[f32]| ControlFlow::Break(());
        let stopped = decode_blocks(std::fs::File::open(&path).unwrap(), 16_000, &LIMITS, &mut stop);
        assert_eq!(stopped, Err(DecodeError::Stopped), "{name}");
    }
}
