//! Draws of tokens.

use candle_core::{DType, Device, MetalDevice, Tensor};
use izwi_metal::{DrawTable, Lookup, Pass, metal_device};
use izwi_types::SamplingParams;

use super::device;
use crate::sampling::{Draw, DrawLimits, Draws, FrameDraws, mix, penalise};

const GREEDY: SamplingParams = SamplingParams::GREEDY;

/// One draw of one row.
#[derive(Debug, Clone, Copy)]
struct RowDraw<'a> {
    draw: Draw<'a>,
    index: usize,
    limits: DrawLimits,
}

/// Temperature, top_k and top_p.
fn settings() -> Vec<SamplingParams> {
    let mut all = vec![GREEDY];
    for temperature in [0.7, 1.5] {
        for top_k in [0, 1, 7, 50] {
            for top_p in [0.3, 0.8, 1.0] {
                all.push(SamplingParams { temperature, top_k, top_p, ..GREEDY });
            }
        }
    }
    all
}

/// Logits like a model's, the same in every run: three of every kind of row.
fn logits(codes: usize, row: u64) -> Vec<f32> {
    let uniform = |at: u64| (mix(row << 32 | at) >> 40) as f32 / (1 << 24) as f32;
    let normal = |at: u64| (0..6).map(|n| uniform(6 * at + n) - 0.5).sum::<f32>() * 4.0;
    let value = |at: u64| match row % 4 {
        // Many ties, also at the edge of the candidates.
        1 => (normal(at) * 2.0).round() / 2.0,
        2 if at.is_multiple_of(3) => f32::NEG_INFINITY,
        3 if at.is_multiple_of(5) => [0.0, -0.0][(at / 5 % 2) as usize],
        _ => normal(at),
    };
    (0..codes as u64).map(value).collect()
}

fn table(on: &MetalDevice, draws: &[RowDraw<'_>], rows: usize, drawn: &[&[u32]], codes: usize) -> DrawTable {
    let draws: Vec<_> = draws.iter().map(|draw| draw.limits.on_metal(draw.draw, draw.index)).collect();
    DrawTable::new(on, &draws, rows, drawn, codes).unwrap()
}

fn draw_on(device: &Device, rows: &[Vec<f32>], draws: &[RowDraw<'_>], drawn: &[&[u32]]) -> Vec<u32> {
    let on = metal_device(device).unwrap();
    let table = table(on, draws, rows.len(), drawn, rows[0].len());
    let codes = table.codes(on).unwrap();
    let logits = Tensor::new(rows.to_vec(), device).unwrap();
    let pass = Pass::open(on).unwrap();
    let run =
        (0..draws.len() / rows.len()).try_for_each(|draw| pass.draw(&logits, &table, draw, &codes, None));
    drop(pass);
    run.unwrap();
    codes.flatten_all().unwrap().to_vec1().unwrap()
}

/// The CPU's draw.
fn expected(row: &[f32], draw: &RowDraw<'_>, drawn: &[u32]) -> u32 {
    let mut row = row.to_vec();
    penalise(&mut row, drawn, draw.limits.penalty);
    let forbidden = row.iter_mut().enumerate().skip(draw.limits.first_forbidden as usize);
    forbidden
        .filter(|&(id, _)| Some(id as u32) != draw.limits.allowed)
        .for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
    draw.draw.choose(&row, draw.index)
}

fn compare(device: &Device, codes: usize, rows: usize, draws: usize) {
    let recorded = [0.0, 1.0 - f64::EPSILON].map(|u| Draws::recorded(vec![u; draws].into()));
    let settings = settings();
    for (group, settings) in settings.chunks(rows).enumerate() {
        let random: Vec<Draws> = (0..rows as u64).map(|row| Draws::new(row + 7)).collect();
        let logits: Vec<Vec<f32>> =
            (0..settings.len() as u64).map(|row| logits(codes, row + group as u64)).collect();
        let draw = |index: usize, row: usize| {
            let draws = if index < 2 { &recorded[index] } else { &random[row] };
            let draw = Draw { draws, counter: 0, sampling: &settings[row] };
            RowDraw { draw, index, limits: DrawLimits::default() }
        };
        let places = (0..draws).flat_map(|index| (0..settings.len()).map(move |row| (index, row)));
        let draws: Vec<RowDraw<'_>> = places.map(|(index, row)| draw(index, row)).collect();
        let chosen = draw_on(device, &logits, &draws, &[]);
        for (at, (&chosen, draw)) in chosen.iter().zip(&draws).enumerate() {
            let row = at % logits.len();
            let expected = expected(&logits[row], draw, &[]);
            assert_eq!(chosen, expected, "{codes} codes, row {row}: {draw:?}");
        }
    }
}

#[test]
fn draws_equal_the_cpu_for_any_setting() {
    let Some(device) = device() else { return };
    compare(&device, 50, 8, 100);
    compare(&device, 1024, 2, 30);
    compare(&device, 2049, 7, 20);
    compare(&device, 3072, 8, 20);
}

#[test]
fn draws_of_65536_tokens_equal_the_cpu() {
    let Some(device) = device() else { return };
    let draws = Draws::new(3);
    let settings = [(1.0, 0, 1.0), (0.7, 50, 0.8), (1.5, 0, 0.3)];
    for (row, (temperature, top_k, top_p)) in settings.into_iter().enumerate() {
        let sampling = SamplingParams { temperature, top_k, top_p, ..GREEDY };
        let draw = Draw { draws: &draws, counter: row as u64, sampling: &sampling };
        let draw = RowDraw { draw, index: 0, limits: DrawLimits::default() };
        let logits = logits(65_536, row as u64);
        assert_eq!(
            draw_on(&device, std::slice::from_ref(&logits), &[draw], &[]),
            [expected(&logits, &draw, &[])]
        );
    }
}

#[test]
fn penalties_and_forbidden_tokens_equal_the_cpu_and_drawn_tokens_are_added() {
    let Some(device) = device() else { return };
    let (codes, rows, count) = (300, 3, 12);
    let source = Draws::new(5);
    let sampling = [0.0, 1.0, 0.8].map(|temperature| SamplingParams { temperature, top_k: 9, ..GREEDY });
    let drawn: [&[u32]; 3] = [&[3, 299, 3], &[], &[77, 78, 79, 500]];
    let logits: Vec<Vec<f32>> = (0..rows as u64).map(|row| logits(codes, row)).collect();
    let limits = |row: usize, index: usize| DrawLimits {
        penalty: [1.3, 1.05, 1.0][row],
        first_forbidden: [100, 250, u32::MAX][(row + index) % 3],
        allowed: [None, Some(280)][index % 2],
    };
    let draw = |row: usize, index| RowDraw {
        draw: Draw { draws: &source, counter: 100 * row as u64, sampling: &sampling[row] },
        index,
        limits: limits(row, index),
    };
    let places = (0..count).flat_map(|index| (0..rows).map(move |row| (row, index)));
    let draws: Vec<_> = places.map(|(row, index)| draw(row, index)).collect();
    let chosen = draw_on(&device, &logits, &draws, &drawn);
    for row in 0..rows {
        let mut before = drawn[row].to_vec();
        for index in 0..count {
            let expected = expected(&logits[row], &draw(row, index), &before);
            assert_eq!(chosen[index * rows + row], expected, "row {row}, draw {index}");
            before.push(expected);
        }
    }
}

#[test]
fn a_draw_adds_its_token_to_those_that_the_next_draw_penalises() {
    let Some(device) = device() else { return };
    let on = metal_device(&device).unwrap();
    let source = Draws::new(2);
    let draw = Draw { draws: &source, counter: 0, sampling: &GREEDY };
    let limits = DrawLimits { penalty: 2.0, ..DrawLimits::default() };
    let draw = [RowDraw { draw, index: 0, limits }; 2];
    let logits = vec![1.0f32, 4.0, 3.0, 2.5];
    let table = table(on, &draw, 1, &[&[3]], 4);
    let codes = table.codes(on).unwrap();
    let logits = Tensor::new(vec![logits], &device).unwrap();
    let pass = Pass::open(on).unwrap();
    let run = (0..2).try_for_each(|at| pass.draw(&logits, &table, at, &codes, None));
    drop(pass);
    run.unwrap();
    assert_eq!(codes.to_vec2::<u32>().unwrap(), [[1], [2]]);
}

#[test]
fn frames_are_drawn_as_on_the_cpu() {
    let Some(device) = device() else { return };
    let sources: Vec<Draws> = (0..2).map(Draws::new).collect();
    let sampling = SamplingParams { temperature: 1.1, ..GREEDY };
    let draw = |draws| Draw { draws, counter: 40, sampling: &sampling };
    let draws: Vec<Draw<'_>> = sources.iter().map(draw).collect();
    let rows = vec![logits(80, 0), logits(80, 1)];
    let frame = |device: &Device| {
        let mut frame = FrameDraws::new(&draws, (1, 5), None, device).unwrap();
        let logits = Tensor::new(rows.clone(), device).unwrap();
        (0..4).for_each(|_| drop(frame.choose(&logits).unwrap()));
        frame.finish().unwrap()
    };
    assert_eq!(frame(&device), frame(&Device::Cpu));
}

#[test]
fn a_row_is_drawn_the_same_alone_and_in_any_batch() {
    let Some(device) = device() else { return };
    let draws: Vec<Draws> = (0..6).map(Draws::new).collect();
    let sampling = SamplingParams { temperature: 1.2, top_k: 40, top_p: 0.9, ..GREEDY };
    let draw = |row: usize| RowDraw {
        draw: Draw { draws: &draws[row], counter: 2, sampling: &sampling },
        index: 0,
        limits: DrawLimits::default(),
    };
    let rows: Vec<Vec<f32>> = (0..6).map(|row| logits(700, row)).collect();
    let all = draw_on(&device, &rows, &(0..6).map(draw).collect::<Vec<_>>(), &[]);
    for row in 0..6 {
        assert_eq!(draw_on(&device, &rows[row..=row], &[draw(row)], &[]), all[row..=row]);
    }
    assert_eq!(draw_on(&device, &rows[2..5], &(2..5).map(draw).collect::<Vec<_>>(), &[]), all[2..5]);
}

#[test]
fn rows_without_a_finite_logit_choose_as_the_cpu() {
    let Some(device) = device() else { return };
    let source = Draws::new(1);
    let sampling = SamplingParams { temperature: 1.0, ..GREEDY };
    let draw = Draw { draws: &source, counter: 0, sampling: &sampling };
    let draw = RowDraw { draw, index: 0, limits: DrawLimits::default() };
    let nan = vec![f32::NAN; 70];
    let nothing = vec![f32::NEG_INFINITY; 70];
    assert_eq!(draw_on(&device, &[nothing, nan], &[draw; 2], &[]), [0, 0]);
}

#[test]
fn the_embedding_of_the_drawn_token_is_looked_up_and_added() {
    let Some(device) = device() else { return };
    let on = metal_device(&device).unwrap();
    let (rows, codes, width) = (3, 90, 70);
    let random = |shape: (usize, usize)| Tensor::randn(0f32, 1.0, shape, &device).unwrap();
    let logits = random((rows, codes));
    let source = Draws::new(9);
    let draw = Draw { draws: &source, counter: 0, sampling: &SamplingParams { temperature: 1.0, ..GREEDY } };
    let draw = |index| RowDraw { draw, index, limits: DrawLimits::default() };
    let table = table(on, &[0, 0, 0, 1, 1, 1].map(draw), 3, &[], 0);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let embedding = random((codes, width)).to_dtype(dtype).unwrap();
        let add = random((rows, 3 * width));
        let out = Tensor::zeros((2 * rows, width), DType::F32, &device).unwrap();
        let codes = table.codes(on).unwrap();
        let pass = Pass::open(on).unwrap();
        let first = Lookup { table: &embedding, add: None, out: &out, start: 0 };
        let second = Lookup { add: Some((&add, width)), start: width, ..first };
        let run = pass.draw(&logits, &table, 0, &codes, Some(first));
        let run = run.and_then(|()| pass.draw(&logits, &table, 1, &codes, Some(second)));
        drop(pass);
        run.unwrap();
        let of = |draw| {
            let rows = embedding.index_select(&codes.get(draw).unwrap(), 0).unwrap();
            rows.to_dtype(DType::F32).unwrap()
        };
        let second = (of(1) + add.narrow(1, width, width).unwrap().contiguous().unwrap()).unwrap();
        let expected = Tensor::cat(&[of(0), second], 1).unwrap();
        let out = out.reshape((rows, 2 * width)).unwrap();
        assert_eq!(out.to_vec2::<f32>().unwrap(), expected.to_vec2::<f32>().unwrap(), "{dtype:?}");
    }
}
