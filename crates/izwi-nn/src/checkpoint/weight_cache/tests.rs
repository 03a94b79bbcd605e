//! The file holds what was packed, and no damage to it causes an error.

use std::collections::HashMap;
use std::fs::OpenOptions;

use candle_core::{DType, Device, Tensor};
use proptest::prelude::*;

use super::*;
use crate::Error;
use crate::checkpoint::{Checkpoint, Recipe};
use crate::layers::conv::{Conv1d, Conv1dShape};
use crate::layers::{Linear, cat_weights};
use crate::precision::weight_type;
use izwi_kernels::linear::Weights;
use izwi_types::Precision;

const PRECISIONS: [Precision; 5] =
    [Precision::F32, Precision::Bf16, Precision::F16, Precision::Q8, Precision::Q4];
const WIDTH: usize = 96;

/// A checkpoint in a folder of its own.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.save(0);
        place
    }

    fn weights(&self) -> PathBuf {
        self.0.path().join("model.safetensors")
    }

    fn cache(&self) -> PathBuf {
        self.0.path().join("model.izwi-q8.cache")
    }

    fn files(&self) -> Vec<String> {
        let names = fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Tensors whose values are others for another `seed`, `seed` seconds later.
    fn save(&self, seed: u64) {
        let tensor = |name: &str, shape: &[usize], dtype| {
            let count: usize = shape.iter().product();
            let value = |at: usize| ((at as u64 * 7919 + seed * 31) % 1009) as f32 / 504.0 - 1.0;
            let values: Vec<f32> = (0..count).map(value).collect();
            let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            (name.to_owned(), tensor)
        };
        let tensors = HashMap::from([
            tensor("a.weight", &[70, WIDTH], DType::F32),
            tensor("b.weight", &[40, WIDTH], DType::BF16),
            tensor("c.weight", &[33, WIDTH], DType::F16),
            tensor("conv.weight", &[50, 6, 3], DType::F32),
            tensor("norm.weight", &[WIDTH], DType::F32),
        ]);
        candle_core::safetensors::save(&tensors, self.weights()).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seed);
        OpenOptions::new().write(true).open(self.weights()).unwrap().set_modified(time).unwrap();
    }

    fn open(&self) -> Checkpoint {
        Checkpoint::open(&self.weights(), &Device::Cpu).unwrap()
    }

    fn open_cached(&self) -> Checkpoint {
        let mut from = self.open();
        from.open_cache(Precision::Q8);
        from
    }
}

/// Takes all of it: kind and bytes of each packed weight. Whether any of them had to be made.
fn load(mut from: Checkpoint) -> (Vec<(PackedKind, Vec<u8>)>, bool) {
    let mut made = false;
    let mut all = Vec::new();
    for name in ["a", "b", "c"] {
        let outputs = from.shape_of(&format!("{name}.weight")).unwrap()[0];
        let parts = [(format!("{name}.weight"), vec![outputs, WIDTH])];
        // Each tensor at a precision of its own.
        let precision = PRECISIONS[name.as_bytes()[0] as usize % PRECISIONS.len()];
        let recipe = Recipe { parts: &parts, transform_id: "", precision, sizes: [1, WIDTH, outputs] };
        let weights = from.take_packed(&recipe, |tensors| {
            made = true;
            Ok(packed(&cat_weights(tensors)?, precision))
        });
        let weights = weights.unwrap();
        all.push((weights.kind(), weights.data().to_vec()));
    }
    let part = ("conv.weight".to_owned(), vec![50, 6, 3]);
    let kernel = Conv1dShape { sizes: [3, 6, 50], dilation: 1, precision: Precision::Bf16 };
    Conv1d::load_transformed(&mut from, (part, ""), None, kernel, |weight| {
        made = true;
        Ok(weight)
    })
    .unwrap();
    from.take("norm.weight", &[WIDTH]).unwrap();
    from.finish().unwrap();
    (all, made)
}

fn packed(weight: &Tensor, precision: Precision) -> Weights {
    let (outputs, inputs) = weight.dims2().unwrap();
    let values = weight.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    Weights::pack(izwi_kernels::linear::WeightSource::F32(&values), inputs, outputs, weight_type(precision))
}

/// Loads twice: the first makes everything as a load without a file does, the second nothing.
fn check_remade(place: &Place) {
    let (fresh, made) = load(place.open());
    assert!(made);
    let (first, made) = load(place.open_cached());
    assert!(made && first == fresh);
    let (second, made) = load(place.open_cached());
    assert!(!made && second == fresh);
    assert_eq!(place.files(), ["model.izwi-q8.cache", "model.safetensors"]);
}

#[test]
fn cached_weights_equal_packed_weights_at_every_precision() {
    let place = Place::new();
    let x = Tensor::randn(0f32, 1.0, (3, WIDTH), &Device::Cpu).unwrap();
    let signal = Tensor::randn(0f32, 1.0, (9, 6), &Device::Cpu).unwrap();
    for precision in PRECISIONS {
        let answers = |mut from: Checkpoint| {
            let stack = [("a", 70), ("b", 40)];
            let linear = Linear::load_stacked(&mut from, &stack, WIDTH, precision).unwrap();
            let narrow = Linear::load_with_precision(&mut from, "c", (WIDTH, 33), false, precision).unwrap();
            let part = ("conv.weight".to_owned(), vec![50, 6, 3]);
            let kernel = Conv1dShape { sizes: [3, 6, 50], dilation: 2, precision };
            let conv = Conv1d::load_transformed(&mut from, (part, ""), None, kernel, Ok).unwrap();
            from.take("norm.weight", &[WIDTH]).unwrap();
            from.finish().unwrap();
            let answers = [linear.forward(&x), narrow.forward(&x), conv.forward(&signal, &[0, 4])];
            answers.map(|answer| answer.unwrap().to_vec2::<f32>().unwrap())
        };
        let cached = || {
            let mut from = place.open();
            from.open_cache(precision);
            from
        };
        let fresh = answers(place.open());
        assert_eq!(answers(cached()), fresh, "{precision}");
        let path = place.0.path().join(format!("model.izwi-{precision}.cache"));
        let written = fs::metadata(&path).unwrap().modified().unwrap();
        assert_eq!(answers(cached()), fresh, "{precision}");
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), written, "{precision}: written again");
    }
}

#[test]
fn a_changed_checkpoint_is_packed_again() {
    let place = Place::new();
    check_remade(&place);
    let (before, _) = load(place.open());
    let length = fs::metadata(place.weights()).unwrap().len();
    place.save(1);
    assert_eq!(fs::metadata(place.weights()).unwrap().len(), length);
    check_remade(&place);
    assert!(load(place.open()).0 != before);
    // Another header, at the same time and of the same length.
    let mut bytes = fs::read(place.weights()).unwrap();
    let modified = fs::metadata(place.weights()).unwrap().modified().unwrap();
    let at = bytes.windows(4).position(|four| four == b"norm").unwrap();
    bytes[at..at + 4].copy_from_slice(b"form");
    fs::write(place.weights(), &bytes).unwrap();
    OpenOptions::new().write(true).open(place.weights()).unwrap().set_modified(modified).unwrap();
    let mut from = place.open_cached();
    Linear::load_transformed(
        &mut from,
        (&[("a.weight".to_owned(), vec![70, WIDTH])], ""),
        (WIDTH, 70),
        Precision::Q8,
        |_| Err(Error::Internal("made")),
    )
    .unwrap_err();
}

#[test]
fn damaged_files_are_replaced() {
    let place = Place::new();
    check_remade(&place);
    let whole = fs::read(place.cache()).unwrap();
    let word = |at: usize, value: u64| {
        let mut bytes = whole.clone();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let damaged = [
        Vec::new(),
        b"izwipack".to_vec(),
        vec![0; 100],
        vec![0xff; 100],
        whole[..HEAD].to_vec(),
        whole[..HEAD + 10].to_vec(),
        whole[..whole.len() - 1].to_vec(),
        whole[..whole.len() / 2].to_vec(),
        [&whole[..], &[0]].concat(),
        word(8, VERSION + 1),
        word(24, u64::MAX),
        word(24, 0),
        word(24, MAX_HEADER_BYTES),
        flipped(0),
        flipped(16),
        flipped(HEAD + 20),
        flipped(whole.len() / 2),
        flipped(whole.len() - 1),
    ];
    for (case, bytes) in damaged.into_iter().enumerate() {
        fs::write(place.cache(), bytes).unwrap();
        println!("{case}");
        check_remade(&place);
        assert!(fs::read(place.cache()).unwrap() == whole, "{case}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_bytes_are_ignored(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        at in any::<prop::sample::Index>(),
        keeps_head in any::<bool>(),
    ) {
        let place = Place::new();
        load(place.open_cached());
        let mut whole = fs::read(place.cache()).unwrap();
        let at = if keeps_head { at.index(whole.len()).max(HEAD) } else { at.index(whole.len()) };
        let end = whole.len().min(at + bytes.len());
        whole[at..end].copy_from_slice(&bytes[..end - at]);
        fs::write(place.cache(), whole).unwrap();
        let (fresh, _) = load(place.open());
        prop_assert!(load(place.open_cached()).0 == fresh);
    }
}

/// A file whose checksums are right.
fn file_of(key: &str, entries: Vec<Entry>, weights: &[u8]) -> Vec<u8> {
    let header = Header { key: key.to_owned(), crc: crc_of(weights).sum(), entries };
    let header = serde_json::to_vec(&header).unwrap();
    let words = [MAGIC, VERSION, crc_of(&header).sum().into(), header.len() as u64];
    let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    [&words[..], &header, weights].concat()
}

#[test]
fn entries_out_of_range_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.cache");
    let right = packed(&Tensor::ones((70, WIDTH), DType::F32, &Device::Cpu).unwrap(), Precision::Q8);
    let (sizes, length) = ([1, WIDTH, 70], right.data().len());
    let entry = |kind, sizes, start, bytes| Entry { name: "x".to_owned(), kind, sizes, start, bytes };
    let take = |entry: Entry, most: u64| {
        fs::write(&path, file_of("key", vec![entry], right.data())).unwrap();
        let mut cache = WeightCache::open(path.clone(), "key".to_owned(), most);
        cache.take::<Weights>("x", sizes).map(|weights| weights.data().to_vec())
    };
    let most = length as u64;
    assert!(take(entry(PackedKind::Q8, sizes, 0, length), most).as_deref() == Some(right.data()));
    for wrong in [
        entry(PackedKind::Q8, sizes, 64, length),
        entry(PackedKind::Q8, sizes, usize::MAX, length),
        entry(PackedKind::Q8, sizes, 0, usize::MAX),
        entry(PackedKind::Q8, sizes, 0, length - 64),
        entry(PackedKind::Q8, sizes, 1, length),
        entry(PackedKind::Q4, sizes, 0, length),
        entry(PackedKind::F32, sizes, 0, length),
        entry(PackedKind::Conv, sizes, 0, length),
        entry(PackedKind::ConvBf16, sizes, 0, length),
        entry(PackedKind::Q8, [1, WIDTH, 71], 0, length),
        entry(PackedKind::Q8, [1, usize::MAX, usize::MAX], 0, length),
    ] {
        let told = format!("{wrong:?}");
        assert!(take(wrong, most).is_none(), "{told}");
    }
    assert!(take(entry(PackedKind::Q8, sizes, 0, length), most - 1).is_none());
    fs::write(&path, file_of("other", Vec::new(), &[])).unwrap();
    assert!(WeightCache::open(path, "key".to_owned(), most).found.is_none());
}

#[test]
fn a_read_only_folder_gets_no_file() {
    let place = Place::new();
    fs::create_dir(place.cache()).unwrap();
    for _ in 0..2 {
        assert!(load(place.open_cached()) == load(place.open()));
        assert_eq!(place.files(), ["model.izwi-q8.cache", "model.safetensors"]);
    }
    let gone = Path::new("/nowhere/at/all/x.cache");
    let mut cache = WeightCache::open(gone.to_owned(), String::new(), 0);
    cache.add(
        "x".to_owned(),
        &Arc::new(packed(&Tensor::ones((3, 3), DType::F32, &Device::Cpu).unwrap(), Precision::Q8)),
    );
    cache.finish();
    assert!(!gone.exists());
}

#[test]
fn concurrent_loaders_leave_one_complete_file() {
    let place = Place::new();
    let (fresh, _) = load(place.open());
    for _ in 0..5 {
        std::thread::scope(|scope| {
            let loaders: Vec<_> = (0..8).map(|_| scope.spawn(|| load(place.open_cached()).0)).collect();
            loaders.into_iter().for_each(|loader| assert!(loader.join().unwrap() == fresh));
        });
        assert_eq!(place.files(), ["model.izwi-q8.cache", "model.safetensors"]);
        assert!(!load(place.open_cached()).1);
        fs::remove_file(place.cache()).unwrap();
    }
}

#[test]
fn abandoned_partial_files_are_removed_and_active_ones_kept() {
    let place = Place::new();
    let partial = |process: &str| place.0.path().join(format!("model.izwi-q8.cache.{process}.partial"));
    for process in ["1", "2"] {
        fs::write(partial(process), "half a file").unwrap();
    }
    let old = SystemTime::now() - 2 * ABANDONED;
    OpenOptions::new().write(true).open(partial("1")).unwrap().set_modified(old).unwrap();
    load(place.open_cached());
    assert_eq!((partial("1").exists(), partial("2").exists(), place.cache().exists()), (false, true, true));
}

#[test]
fn checkpoints_are_checked_as_strictly_with_a_cache() {
    let place = Place::new();
    check_remade(&place);
    let told = |mut from: Checkpoint| {
        let linear = |from: &mut Checkpoint, name: &str, outputs| {
            Linear::load_with_precision(from, name, (WIDTH, outputs), false, Precision::Q8).unwrap();
        };
        linear(&mut from, "a", 70);
        linear(&mut from, "a", 70);
        linear(&mut from, "b", 41);
        linear(&mut from, "d", 5);
        from.finish().unwrap_err().to_string()
    };
    let message = told(place.open_cached());
    assert_eq!(message, told(place.open()));
    for line in [
        "a.weight: missing",
        "b.weight: shape [40, 96], expected [41, 96]",
        "d.weight: missing",
        "norm.weight: unknown",
    ] {
        assert!(message.contains(line), "{message}");
    }
    // And what was read wrongly is not kept.
    assert!(!load(place.open_cached()).1);
}

#[test]
fn small_checkpoints_have_no_cache() {
    let place = Place::new();
    load(place.open().with_cache(Precision::Q8));
    assert_eq!(place.files(), ["model.safetensors"]);
}

/// Names the folder of the checkpoint in a process that a test starts of itself.
const FOLDER: &str = "IZWI_TEST_CACHE";

/// This test again, alone, in a process of its own.
fn again(test: &str, place: &Place) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let test = format!("checkpoint::weight_cache::tests::{test}");
    command.args(["--exact", &test]).env(FOLDER, place.0.path());
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    command
}

/// Loads the checkpoint of the process that started this one, if one did.
fn load_as_child() -> bool {
    let Some(folder) = std::env::var_os(FOLDER) else { return false };
    let mut from = Checkpoint::open(&Path::new(&folder).join("model.safetensors"), &Device::Cpu).unwrap();
    from.open_cache(Precision::Q8);
    load(from);
    true
}

#[test]
fn a_killed_writer_leaves_a_whole_file_or_none() {
    while load_as_child() {
        let folder = std::env::var_os(FOLDER).unwrap();
        fs::remove_file(Path::new(&folder).join("model.izwi-q8.cache")).unwrap();
    }
    let place = Place::new();
    let (fresh, _) = load(place.open());
    for kill in 0..12 {
        let mut child = again("a_killed_writer_leaves_a_whole_file_or_none", &place).spawn().unwrap();
        while place.files().len() == 1 && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // At another point of the loop each time.
        std::thread::sleep(Duration::from_millis(kill));
        child.kill().unwrap();
        child.wait().unwrap();
        let written = place.cache().exists();
        let (loaded, made) = load(place.open_cached());
        assert!(loaded == fresh && made != written, "{kill}");
        assert!(!load(place.open_cached()).1, "the next load reads the file");
        fs::remove_file(place.cache()).unwrap();
        for name in place.files().iter().filter(|name| name.ends_with(PARTIAL)) {
            fs::remove_file(place.0.path().join(name)).unwrap();
        }
    }
}

#[cfg(unix)]
#[test]
fn a_disk_without_room_gets_no_file() {
    if load_as_child() {
        return;
    }
    let place = Place::new();
    let child = again("a_disk_without_room_gets_no_file", &place);
    // The limit of a file's size, in blocks of 512 or 1024 bytes, stands for a full disk.
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 4; exec \"$0\" \"$@\""]).arg(child.get_program());
    let ended = limited.args(child.get_args()).env(FOLDER, place.0.path()).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(place.files(), ["model.safetensors"]);
    check_remade(&place);
}

#[test]
fn every_damaged_byte_is_found() {
    let place = Place::new();
    let (fresh, _) = load(place.open_cached());
    let whole = fs::read(place.cache()).unwrap();
    let header = u64::from_le_bytes(whole[24..HEAD].try_into().unwrap()) as usize;
    let key = serde_json::from_slice::<Header>(&whole[HEAD..HEAD + header]).unwrap().key;
    let found = || WeightCache::open(place.cache(), key.clone(), u64::MAX).found.is_some();
    assert!(found());
    // The head and the header bit by bit; of the weights one byte in 61.
    let weights = (HEAD + header..whole.len()).step_by(61);
    for at in (0..HEAD + header).chain(weights) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(place.cache(), damaged).unwrap();
        assert!(!found(), "{at}");
    }
    fs::write(place.cache(), whole).unwrap();
    assert!(load(place.open_cached()) == (fresh, false));
}
