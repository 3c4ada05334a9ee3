//! `retrie params lvmt`: the file is made, says what it is, and bad input is one line.

use crate::common::{TestFolder, fails_saying, retrie, succeeds, words};
use retrie_storage_lvmt::LvmtParams;

fn params(args: &str) -> std::process::Command {
    retrie(words(&format!("params lvmt {args}")))
}

#[test]
fn development_parameters_are_written_and_marked() {
    let scene = TestFolder::new();
    for (more, has_quotients, size) in [("", true, "34,816"), ("--without-proofs", false, "10,240")]
    {
        let file = scene.at("dev.params");
        let _ = std::fs::remove_file(scene.path("dev.params"));
        let mut command = params(&format!("--insecure-dev --height 4 -o {file} {more}"));
        let said = succeeds(&mut command);
        let params = LvmtParams::load(&scene.path("dev.params")).unwrap();
        assert!(params.is_insecure());
        assert_eq!((params.height(), params.has_quotients()), (4, has_quotients));
        for part in [&file, "INSECURE", &format!("digest {}", params.digest()), size, "height 4"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}

#[test]
fn what_is_there_is_not_replaced() {
    let scene = TestFolder::new();
    let file = scene.at("dev.params");
    succeeds(&mut params(&format!("--insecure-dev --height 2 -o {file}")));
    let before = std::fs::read(scene.path("dev.params")).unwrap();
    let mut again = params(&format!("--insecure-dev --height 3 -o {file}"));
    fails_saying(&mut again, &["dev.params", "holds parameters"]);
    assert_eq!(std::fs::read(scene.path("dev.params")).unwrap(), before);
    let ceremony = scene.at("mine.ptau");
    std::fs::write(scene.path("mine.ptau"), "ptau").unwrap();
    let mut same = params(&format!("--ptau {ceremony} -o {ceremony}"));
    fails_saying(&mut same, &["mine.ptau", "holds no parameters"]);
    assert_eq!(std::fs::read(scene.path("mine.ptau")).unwrap(), b"ptau");
}

#[test]
fn bad_input_is_one_line_and_leaves_nothing() {
    let scene = TestFolder::new();
    let file = scene.at("new.params");
    let ptau = scene.write("bad.ptau", b"ptauXXXXXXXXX");
    fails_saying(&mut params(&format!("--ptau {ptau} -o {file}")), &["bad.ptau", "version"]);
    let none = scene.at("none.ptau");
    fails_saying(&mut params(&format!("--ptau {none} -o {file}")), &["none.ptau", "reading"]);
    let nowhere = scene.at("nowhere/new.params");
    fails_saying(&mut params(&format!("--insecure-dev -o {nowhere}")), &["nowhere", "folder"]);
    for wrong in ["--height 17 --insecure-dev", "--height 4", "--insecure-dev --ptau x"] {
        let output = params(&format!("{wrong} -o {file}")).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong}: a usage error");
    }
    assert!(!scene.path("new.params").exists());
    assert_eq!(std::fs::read_dir(scene.dir.path()).unwrap().count(), 1, "only the bad file");
}
