//! A working folder full of files that tools of package ecosystems would run or obey.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::Izwi;
use crate::hub::sha256;

/// Writes a script that leaves a file `executed` in the folder of `izwi`.
fn trap(izwi: &Izwi, path: &Path) {
    let marker = izwi.path("executed");
    let text = match path.extension().is_some_and(|extension| extension == "py") {
        true => format!("open({:?}, 'a').write(__file__)\n", marker.display().to_string()),
        false => format!("#!/bin/sh\necho \"$0\" >> '{}'\nexit 1\n", marker.display()),
    };
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A folder `work` with traps.
fn hostile(izwi: &Izwi) {
    let work = izwi.path("work");
    fs::create_dir_all(work.join("node_modules")).unwrap();
    for name in
        ["pip.py", "sitecustomize.py", "zipfile.py", "python3", "python", "npm", "node", "ffplay", "aplay"]
    {
        trap(izwi, &work.join(name));
    }
    for (name, text) in [
        (".npmrc", "registry=http://127.0.0.1:9/\nscript-shell=./npm\n"),
        ("package.json", "{\"scripts\": {\"prepack\": \"./npm\"}, \"packageManager\": \"evil@1\"}"),
        (".pnp.cjs", "throw 1"),
        ("pip.conf", "[global]\nindex-url = http://127.0.0.1:9/\n"),
        (".python-version", "../../work"),
    ] {
        fs::write(work.join(name), text).unwrap();
    }
}

/// Offers a model that is in one package.
fn offer(izwi: &Izwi, name: &str, ecosystem: &str, archive_hash: &str, file_hash: &str) {
    let manifest = format!(
        "name = \"{name}\"\nfamily = \"bird\"\ndescription = \"sings\"\ntask = [\"tts\"]\nlicence = \"MIT\"\n\
         languages = [\"en\"]\n[[sources]]\nkind = \"package\"\necosystem = \"{ecosystem}\"\n\
         packages = [{{ name = \"lark\", version = \"1.0\", sha256 = \"{archive_hash}\" }}]\n\
         [[sources.files]]\npath = \"lark/lark.bin\"\ntarget = \"lark.bin\"\nsha256 = \"{file_hash}\"\nsize = 5\n"
    );
    fs::create_dir_all(izwi.path("home/manifests")).unwrap();
    fs::write(izwi.path(&format!("home/manifests/{name}.toml")), manifest).unwrap();
}

#[track_caller]
fn nothing_was_executed(izwi: &Izwi, output: &Output) {
    let executed = fs::read_to_string(izwi.path("executed")).unwrap_or_default();
    assert_eq!(executed, "", "executed: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn package_clients_run_apart_from_the_working_folder() {
    let izwi = Izwi::alone();
    hostile(&izwi);
    fs::create_dir(izwi.path("bin")).unwrap();
    for client in ["python3", "npm"] {
        let path = izwi.path("bin").join(client);
        let script = "#!/bin/sh\n{ pwd; echo \"$@\"; ls; env; } > \"$0.seen\"\nexit 1\n";
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let search = format!(".::work:{}:/usr/bin:/bin", izwi.path("bin").display());
    for (model, ecosystem, client, arguments) in
        [("lark-pip", "pip", "python3", "-I -c "), ("lark-npm", "npm", "npm", "pack ")]
    {
        offer(&izwi, model, ecosystem, &"0".repeat(64), &"0".repeat(64));
        let mut command = izwi.command(&["pull", model]);
        command.current_dir(izwi.path("work")).env("PATH", &search);
        let dropped = [
            ("PYTHONPATH", "."),
            ("PYTHONHOME", "."),
            ("PIP_PYTHON", "./python3"),
            ("PIP_TARGET", "."),
            ("NODE_OPTIONS", "--require ./.pnp.cjs"),
            ("NODE_PATH", "."),
            ("npm_config_ignore_scripts", "false"),
            ("npm_config_script_shell", "./npm"),
            ("BASH_ENV", "./npm"),
            ("HF_TOKEN", "topsecret"),
            ("IZWI_API_KEY", "topsecret-topsecret"),
        ];
        let kept = [
            ("PIP_INDEX_URL", "https://mirror/simple"),
            ("PIP_CERT", "/etc/cert"),
            ("npm_config_registry", "https://mirror/npm"),
            ("NODE_EXTRA_CA_CERTS", "/etc/cert"),
            ("https_proxy", "http://proxy:1"),
            ("SSL_CERT_FILE", "/etc/cert"),
        ];
        let output = command.envs(dropped).envs(kept).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
        nothing_was_executed(&izwi, &output);
        let seen = fs::read_to_string(izwi.path("bin").join(format!("{client}.seen"))).unwrap();
        let mut lines = seen.lines();
        let folder = lines.next().unwrap();
        assert!(folder.contains("/home/models/.partial/"), "{folder}");
        let given = lines.next().unwrap();
        assert!(given.starts_with(arguments) && given.contains("lark"), "{given}");
        for (name, _) in dropped {
            assert!(!seen.lines().any(|line| line.starts_with(&format!("{name}="))), "{name} in {seen}");
        }
        assert!(!seen.contains("topsecret"), "{seen}");
        for (name, value) in kept {
            assert!(seen.lines().any(|line| line == format!("{name}={value}")), "no {name} in {seen}");
        }
        let path = seen.lines().find_map(|line| line.strip_prefix("PATH=")).unwrap();
        assert!(path.split(':').all(|folder| folder.starts_with('/')), "{path}");
        assert!(!seen.lines().any(|line| line == ".npmrc" || line == "pip.py"), "{seen}");
        assert!(seen.contains(&format!("TMPDIR={folder}/")), "{seen}");
    }
}

/// Makes the wheel of `lark` and returns the hash of its one wanted file.
fn wheel(folder: &Path) -> String {
    fs::create_dir_all(folder).unwrap();
    let program = "import sys, zipfile\n\
        with zipfile.ZipFile(sys.argv[1], 'w') as wheel:\n\
        \x20   wheel.writestr('lark/lark.bin', 'tweet')\n\
        \x20   wheel.writestr('lark-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: lark\\nVersion: 1.0\\n')\n\
        \x20   wheel.writestr('lark-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n\
        \x20   wheel.writestr('lark-1.0.dist-info/RECORD', '')\n";
    let path = folder.join("lark-1.0-py3-none-any.whl");
    assert!(Command::new("python3").args(["-I", "-c", program]).arg(path).status().unwrap().success());
    sha256(b"tweet")
}

#[test]
fn a_module_in_the_working_folder_is_not_run() {
    let izwi = Izwi::alone();
    hostile(&izwi);
    let file_hash = wheel(&izwi.path("wheels"));
    let archive = fs::read(izwi.path("wheels/lark-1.0-py3-none-any.whl")).unwrap();
    offer(&izwi, "lark", "pip", &sha256(&archive), &file_hash);
    let run = |arguments: &[&str]| {
        let mut command = izwi.command(arguments);
        command.current_dir(izwi.path("work"));
        command.env("PIP_NO_INDEX", "1").env("PIP_FIND_LINKS", izwi.path("wheels")).output().unwrap()
    };
    let pulled = run(&["pull", "lark"]);
    nothing_was_executed(&izwi, &pulled);
    assert!(pulled.status.success(), "{}", String::from_utf8_lossy(&pulled.stderr));
    assert_eq!(fs::read(izwi.path("home/models/lark/lark.bin")).unwrap(), b"tweet");
    let report = run(&["doctor"]);
    nothing_was_executed(&izwi, &report);
    assert!(String::from_utf8_lossy(&report.stdout).contains("with pip"), "{report:?}");
}
