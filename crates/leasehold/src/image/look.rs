//! Lists and shows images.

use leasehold_core::quantity::format_bytes;
use leasehold_image::store::plan::{At, MountPlan};
use leasehold_image::store::records::Image;
use leasehold_image::store::{Scope, Store};
use serde_json::json;

use super::fault;
use crate::fault::Fault;
use crate::voice::clean;
use crate::{table, voice};

/// Digits of a digest in a table.
const DIGITS: usize = 12;

/// `leasehold image ls`.
pub(super) fn list(store: &Store, json: bool) -> Result<u8, Fault> {
    let scope = Scope::host();
    let images = store.images(&scope).map_err(|error| fault(&error))?;
    let names = store.names(&scope).map_err(|error| fault(&error))?;
    let of = |image: &Image| -> Vec<String> {
        let own = names.iter().filter(|name| name.digest == image.digest);
        own.map(|name| name.name.clone()).collect()
    };
    if json {
        let rows: Vec<_> = images
            .iter()
            .map(|image| json!({ "names": of(image), "image": image }))
            .collect();
        voice::json(&rows)?;
        return Ok(0);
    }
    let mut rows = Vec::new();
    for image in &images {
        let mut own = of(image);
        if own.is_empty() {
            own.push("-".to_owned());
        }
        for name in own {
            rows.push([
                clean(&name),
                image.digest.hex()[..DIGITS].to_owned(),
                clean(&image.platform.to_string()),
                image.layers.len().to_string(),
                format_bytes(image.bytes),
            ]);
        }
    }
    for name in &names {
        if !images.iter().any(|image| image.digest == name.digest) {
            rows.push([
                clean(&name.name),
                name.digest.hex()[..DIGITS].to_owned(),
                "-".to_owned(),
                "-".to_owned(),
                "missing".to_owned(),
            ]);
        }
    }
    rows.sort();
    let heading = ["NAME", "DIGEST", "PLATFORM", "LAYERS", "SIZE"];
    voice::data(table::lines(heading, rows).as_bytes())?;
    Ok(0)
}

/// `leasehold image show`.
pub(super) fn show(store: &Store, name: &str, json: bool) -> Result<u8, Fault> {
    let scope = Scope::host();
    let image = store.find(&scope, name).map_err(|error| fault(&error))?;
    let plan = store.mount_plan(&scope, &image.digest);
    let plan = plan.map_err(|error| fault(&error))?;
    let mut layers = Vec::new();
    for layer in &image.layers {
        let record = store.layer_record(&layer.key);
        layers.push(record.map_err(|error| fault(&error))?);
    }
    if json {
        voice::json(&json!({
            "image": image,
            "config": plan.config,
            "layers": layers,
            "facts": plan.facts,
        }))?;
        return Ok(0);
    }
    let mut text = words(&image, &plan);
    let rows = image.layers.iter().zip(&layers).map(|(layer, record)| {
        let found = record.as_ref().map(|record| &record.unpacked);
        let left = found.map_or(0, |found| {
            let left = &found.left_out;
            left.specials + left.attributes + left.set_ids + left.marks
        });
        [
            layer.blob.hex()[..DIGITS].to_owned(),
            format_bytes(layer.bytes),
            format_bytes(found.map_or(0, |found| found.bytes)),
            found.map_or(0, |found| found.entries).to_string(),
            left.to_string(),
        ]
    });
    let heading = ["LAYER", "SIZE", "UNPACKED", "ENTRIES", "LEFT OUT"];
    text.push('\n');
    text.push_str(&table::lines(heading, rows.collect()));
    voice::data(text.as_bytes())?;
    Ok(0)
}

/// What an image is, in words.
fn words(image: &Image, plan: &MountPlan) -> String {
    let list = |texts: &[String]| match texts {
        [] => "-".to_owned(),
        texts => texts
            .iter()
            .map(|text| clean(text))
            .collect::<Vec<_>>()
            .join(" "),
    };
    let process = &plan.config.process;
    let word = |text: &str, empty: &str| clean(if text.is_empty() { empty } else { text });
    let mut text = format!(
        "digest      {}\nplatform    {}\nsource      {}\ncreated     {}\nsize        {}\nentrypoint  {}\ncommand     {}\nuser        {}\ndirectory   {}\nowners      {}\n",
        image.digest,
        clean(&image.platform.to_string()),
        clean(&image.source),
        clean(plan.config.created.as_deref().unwrap_or("-")),
        format_bytes(image.bytes),
        list(&process.entrypoint),
        list(&process.cmd),
        word(&process.user, "root"),
        word(&process.working_dir, "/"),
        if plan.owners {
            "as in the image"
        } else {
            "all the caller's"
        },
    );
    for variable in &process.env {
        text.push_str(&format!("env         {}\n", clean(variable)));
    }
    for fact in &plan.facts {
        match &fact.at {
            At::Link(to) => {
                text.push_str(&format!("link        /{} -> {}\n", fact.path, clean(to)))
            }
            At::BehindLink => text.push_str(&format!("link        /{} is behind one\n", fact.path)),
            At::Nothing | At::Directory | At::File => {}
        }
    }
    text
}
