//! Conversion of archives that the toolkit wrote, and of malformed bytes.

use std::io::Write as _;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use safetensors::SafeTensors;

use super::*;

/// The archives of the golden sets.
fn golden() -> Vec<PathBuf> {
    let folders =
        |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let sets = folders(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden"));
    let files = sets
        .flat_map(|set| folders(&set).collect::<Vec<_>>())
        .flat_map(|model| folders(&model).collect::<Vec<_>>());
    files.filter(|file| file.extension().is_some_and(|suffix| suffix == "nemo")).collect()
}

/// Converts the bytes of an archive; the folder with the result.
fn converted(archive: &[u8]) -> Result<tempfile::TempDir, ConversionError> {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("model.nemo"), folder.path().join("model.safetensors"));
    fs::write(&source, archive).unwrap();
    let beside = convert(&source, &target)?;
    assert!(beside.contains(&folder.path().join(SETTINGS)) && beside.iter().all(|path| path.exists()));
    Ok(folder)
}

fn zipped(archive: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(archive).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn archives_keep_every_value() {
    let archives = golden();
    assert!(archives.len() >= 4, "{archives:?}");
    for path in archives {
        let (archive, kind) = (fs::read(&path).unwrap(), path.display());
        let folder = converted(&archive).unwrap();
        let weights = fs::read(folder.path().join("model.safetensors")).unwrap();
        let ours = SafeTensors::deserialize(&weights).unwrap();
        assert!(ours.names().iter().all(|name| !name.ends_with("num_batches_tracked")));
        let theirs = ["hf/model.safetensors", "model.safetensors"].map(|name| path.with_file_name(name));
        let theirs = fs::read(theirs.iter().find(|path| path.exists()).unwrap()).unwrap();
        for (name, tensor) in SafeTensors::deserialize(&theirs).unwrap().tensors() {
            let is_same =
                ours.iter().any(|(_, own)| (own.shape(), own.data()) == (tensor.shape(), tensor.data()));
            assert!(is_same || name.ends_with("num_batches_tracked"), "{kind} {name}");
        }
        let settings = fs::read_to_string(folder.path().join(SETTINGS)).unwrap();
        assert!(settings.contains("preprocessor:"), "{kind}");
        let again = converted(&zipped(&archive)).unwrap();
        // A model that writes no text has no tokenizer.
        let writes = settings.contains("tokenizer:");
        assert_eq!(folder.path().join(TOKENIZER).exists(), writes, "{kind}");
        for name in ["model.safetensors", SETTINGS, TOKENIZER].into_iter().take(2 + usize::from(writes)) {
            let read = |folder: &tempfile::TempDir| fs::read(folder.path().join(name)).unwrap();
            assert_eq!(read(&folder), read(&again), "{kind} {name}");
        }
    }
}

/// An archive of members.
fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append_data(&mut header, name, *bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Weights whose index is `index`, with one storage of two values.
fn weights(index: &[u8]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in [("m/data.pkl", index), ("m/data/0", &[0, 0, 128, 63, 0, 0, 0, 64])] {
        zip.start_file(name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// The index of one tensor of `size` values from `offset` on, in a storage of the type `kind`.
fn index(kind: &str, offset: u8, size: u8) -> Vec<u8> {
    let mut index = b"\x80\x02ccollections\nOrderedDict\n)R(X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagec".to_vec();
    index.extend_from_slice(kind.replace('.', "\n").as_bytes());
    index.extend_from_slice(b"\nX\x01\0\0\x000X\x03\0\0\0cpuK\x02tQ");
    index.extend_from_slice(&[b'K', offset, b'K', size, 0x85, b'K', 1, 0x85, 0x89]);
    index.extend_from_slice(b"ccollections\nOrderedDict\n)RtRu.");
    index
}

#[test]
fn malformed_and_foreign_archives_are_refused_by_cause() {
    let members = |weights: &[u8]| {
        archive(&[
            ("./model_config.yaml", b"a: 1\n"),
            ("./0a_tokenizer.model", b"t"),
            ("./model_weights.ckpt", weights),
        ])
    };
    let refusal = |bytes: &[u8]| converted(bytes).unwrap_err().to_string();
    assert!(converted(&members(&weights(&index("torch.FloatStorage", 0, 2)))).is_ok());
    for (index, cause) in [
        (index("torch.FloatStorage", 1, 2), "longer than its storage"),
        (index("torch.DoubleStorage", 0, 2), "longer than its storage"),
        (index("os.system", 0, 2), "os.system, which makes no tensor"),
        (b"\x80\x02cposix\nsystem\n.".to_vec(), "posix.system"),
        (b"\x80\x04.".to_vec(), "protocol 4"),
        (b"\x80\x02}.".to_vec(), "no tensor"),
        (b"\x80\x02)\x85\x85\x85.".to_vec(), "nested"),
        (b"\x80\x02h\x07.".to_vec(), "before it is kept"),
        (Vec::new(), "ends early"),
    ] {
        let found = refusal(&members(&weights(&index)));
        assert!(found.contains(cause), "{cause}: {found}");
    }
    assert!(refusal(&members(b"no archive")).contains("the weights cannot be read"));
    assert!(refusal(b"no archive").contains("the archive"));
    assert!(refusal(&archive(&[("./model_config.yaml", b"a: 1\n")])).contains("has no 'model_weights.ckpt'"));
    let whole = members(&weights(&index("torch.FloatStorage", 0, 2)));
    assert!(refusal(&whole[..1_000]).contains("the archive"));
    let bomb = archive(&[("./model_weights.ckpt", &vec![0; 1 << 22])]);
    assert!(refusal(&zipped(&bomb)).contains("the archive"));
}

proptest! {
    #[test]
    fn no_index_is_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0usize..150, byte: u8) {
        let _ = pickle::tensors(&bytes);
        let mut index = index("torch.FloatStorage", 0, 2);
        let at = at % index.len();
        index[at] = byte;
        let weights = weights(&index);
        let _ = super::weights::named(&weights);
        let mut archive = archive(&[(SETTINGS, b"a"), (TOKENIZER, b"t"), ("model_weights.ckpt", &weights)]);
        let at = (at * 37) % archive.len();
        archive[at] = byte;
        let _ = converted(&archive);
    }
}
