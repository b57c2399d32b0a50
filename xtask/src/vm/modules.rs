//! Which files of a kernel a module needs, in the order in which they are loaded.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::steps;

/// The modules of an unpacked kernel.
pub struct Modules {
    files: BTreeMap<String, PathBuf>,
    built_in: Vec<String>,
}

/// One module, as the kernel takes it.
pub struct Module {
    pub name: String,
    pub content: Vec<u8>,
}

impl Modules {
    pub fn of(directory: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        collect(&directory.join("kernel"), &mut files)?;
        let list = directory.join("modules.builtin");
        let text = fs::read_to_string(&list).with_context(|| format!("cannot read `{}`", list.display()))?;
        let built_in = text.lines().filter_map(|line| name_of(Path::new(line))).collect();
        Ok(Self { files, built_in })
    }

    /// The modules `names` with all they depend on, those first. What is built in is left out.
    pub fn with_dependencies(&self, names: &[&str]) -> Result<Vec<Module>> {
        let mut modules = Vec::new();
        for name in names {
            self.add(name, &mut modules)?;
        }
        Ok(modules)
    }

    fn add(&self, name: &str, modules: &mut Vec<Module>) -> Result<()> {
        if modules.iter().any(|module| module.name == name) {
            return Ok(());
        }
        let Some(path) = self.files.get(name) else {
            if self.built_in.iter().any(|built_in| built_in == name) {
                return Ok(());
            }
            bail!("this kernel has no module `{name}`");
        };
        let content = read(path)?;
        for dependency in dependencies(&content) {
            self.add(&dependency, modules)?;
        }
        modules.push(Module { name: name.to_owned(), content });
        Ok(())
    }
}

fn collect(directory: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot list `{}`", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if let Some(name) = name_of(&path) {
            files.insert(name, path);
        }
    }
    Ok(())
}

/// From `…/virtio-rng.ko.xz` to `virtio_rng`.
fn name_of(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_string_lossy();
    let (name, _) = file.split_once(".ko")?;
    Some(name.replace('-', "_"))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let unpacker = match path.extension().map(|extension| extension.to_string_lossy()).as_deref() {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return fs::read(path).with_context(|| format!("cannot read `{}`", path.display())),
    };
    let output = steps::program(unpacker).args(["--decompress", "--stdout"]).arg(path).output();
    let output = output.with_context(|| format!("cannot run `{unpacker}`"))?;
    if !output.status.success() {
        bail!("cannot unpack `{}`", path.display());
    }
    Ok(output.stdout)
}

/// A module says what it depends on among its other strings, each ended by a zero.
fn dependencies(content: &[u8]) -> Vec<String> {
    let mut strings = content.split(|byte| *byte == 0);
    let list = strings.find_map(|string| string.strip_prefix(b"depends="));
    let list = String::from_utf8_lossy(list.unwrap_or_default()).into_owned();
    list.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{dependencies, name_of};

    #[test]
    fn a_module_names_itself_and_what_it_needs() {
        let path = Path::new("kernel/drivers/char/hw_random/virtio-rng.ko.xz");
        assert_eq!(name_of(path).as_deref(), Some("virtio_rng"));
        assert_eq!(name_of(Path::new("modules.order")), None);
        let content = b"\x7fELF\0license=GPL\0depends=net_failover,virtio-ring\0name=virtio_net\0";
        assert_eq!(dependencies(content), ["net_failover", "virtio_ring"]);
        assert!(dependencies(b"license=GPL\0depends=\0").is_empty());
    }
}
