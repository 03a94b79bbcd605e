//! Lookups and sums of embeddings.

use candle_core::{DType, Device, Tensor};
use izwi_metal::{Entries, Pass};

use super::device;
use crate::layers::{Embedding, sum_embeddings};

#[test]
fn sums_are_the_same_bits_as_on_the_cpu() {
    let Some(device) = device() else { return };
    let dtypes = [DType::F32, DType::F16, DType::BF16];
    for (width, count, rows) in [(70, 1, 5), (300, 16, 3), (8, 17, 2)] {
        let tables: Vec<Tensor> = (0..count)
            .map(|at| Tensor::randn(0f32, 1.0, (20 + at, width), &Device::Cpu).unwrap())
            .enumerate()
            .map(|(at, table)| table.to_dtype(dtypes[at % 3]).unwrap())
            .collect();
        let ids: Vec<u32> = (0..rows * count).map(|at| (at * 7 % 20) as u32).collect();
        let sum = |device: &Device| {
            let tables = tables.iter().map(|table| Embedding::new(table.to_device(device).unwrap()).unwrap());
            let tables: Vec<Embedding> = tables.collect();
            let tables: Vec<&Embedding> = tables.iter().collect();
            assert!(sum_embeddings(&tables, &vec![20; count]).is_err());
            let alone = tables[0].forward(&[3, 0, 19]).unwrap().to_vec2::<f32>().unwrap();
            (sum_embeddings(&tables, &ids).unwrap().to_vec2::<f32>().unwrap(), alone)
        };
        assert_eq!(sum(&device), sum(&Device::Cpu), "{count} tables");
    }
}

#[test]
fn entries_of_one_table_by_drawn_codes_are_added_to_a_row() {
    let Some(device) = device() else { return };
    let table = Tensor::randn(0f32, 1.0, (30, 9), &device).unwrap();
    let codes = [[1u32, 0, 4], [2, 9, 4]];
    let ids = Tensor::new(&codes, &device).unwrap(); // [rows, tables]
    let add = Tensor::randn(0f32, 1.0, (1, 9), &device).unwrap();
    let tables = [0, 1, 2].map(|at| Entries { table: &table, first: 10 * at, entries: 10 });
    let pass = Pass::of(&table).unwrap();
    let y = pass.embedding_sum(&tables, &ids, Some(&add));
    drop(pass);
    let (rows, add) = (table.to_vec2::<f32>().unwrap(), add.to_vec2::<f32>().unwrap());
    for (at, row) in y.unwrap().to_vec2::<f32>().unwrap().into_iter().enumerate() {
        let id = |of: usize| 10 * of + codes[at][of] as usize;
        let sum = |d: usize| add[0][d] + (rows[id(0)][d] + rows[id(1)][d] + rows[id(2)][d]);
        assert_eq!(row, (0..9).map(sum).collect::<Vec<_>>());
    }
}
