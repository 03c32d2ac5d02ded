//! The pages of plans, opened by a browser where there is one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use fleetwright::plan::Plan;
use fleetwright::render;

use crate::browser::{BrowserPage, Viewport, open};
use crate::large::large;

/// Opens the page of a plan; the folder holds its file.
fn opened(plan: &Plan, look: Viewport) -> anyhow::Result<Option<(BrowserPage, tempfile::TempDir)>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("plan.html");
    fs::write(&file, render::html(plan))?;
    Ok(open(&format!("file://{}", file.display()), look).map(|shown| (shown, folder)))
}

fn saved(name: &str) -> anyhow::Result<Plan> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans").join(name);
    Ok(serde_json::from_str(&fs::read_to_string(path)?)?)
}

#[test]
fn browser_opens_page_of_5000_nodes_without_errors() -> anyhow::Result<()> {
    let Some((shown, _folder)) = opened(&large()?, Viewport::DESK)? else { return Ok(()) };
    let rows = shown.ask("document.querySelectorAll('tr[data-text]').length")?;
    assert_eq!(rows, (1_000 + 4).to_string(), "each removal, and the workloads");
    // The script ran: what needs it is shown.
    assert_eq!(shown.ask("document.querySelectorAll('[data-script][hidden]').length")?, "0");
    assert!(shown.complaints().is_empty(), "{:#?}", shown.complaints());
    Ok(())
}

#[test]
fn page_fits_two_widths_in_light_and_dark() -> anyhow::Result<()> {
    let plan = saved("quickstart.json")?;
    let mut grounds = BTreeSet::new();
    for look in [400, 1_280]
        .into_iter()
        .flat_map(|width| [false, true].map(|dark| Viewport { width, dark }))
    {
        let Some((shown, _folder)) = opened(&plan, look)? else { return Ok(()) };
        // What is wider than the window scrolls in a frame of its own.
        let wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
        assert_eq!(shown.ask(wide)?, "0", "{} pixels", look.width);
        let cut = "[...document.querySelectorAll('.tile, .tile b, .panel, .zone')]\
                   .filter(one => one.scrollWidth > one.clientWidth).map(one => one.outerHTML).join()";
        assert_eq!(shown.ask(cut)?, "", "{} pixels", look.width);
        grounds.insert(shown.ask("getComputedStyle(document.body).backgroundColor")?);
        assert!(shown.complaints().is_empty(), "{:#?}", shown.complaints());
        // Pictures for whoever asks for them.
        if let Some(folder) = std::env::var_os("FLEETWRIGHT_PICTURES").map(PathBuf::from) {
            let theme = if look.dark { "dark" } else { "light" };
            shown.picture(&folder.join(format!("plan-{}-{theme}.png", look.width)))?;
        }
    }
    assert_eq!(grounds.len(), 2, "one ground in light and one in dark: {grounds:?}");
    Ok(())
}

#[test]
fn page_is_usable_by_keyboard() -> anyhow::Result<()> {
    let plan = saved("quickstart.json")?;
    let Some((shown, _folder)) = opened(&plan, Viewport::DESK)? else { return Ok(()) };
    // All that answers to a key and is shown; what lies in a closed part opens first.
    shown.ask(
        "(document.querySelectorAll('details').forEach(part => part.open = true), \
         window.all = [...document.querySelectorAll('a[href], input, button, summary, select, [tabindex=\"0\"]')]\
         .filter(one => one.checkVisibility()), window.met = new Set(), window.bare = [], window.all.length)",
    )?;
    let all: usize = shown.ask("window.all.length")?.parse()?;
    assert!(all > 1, "the search, and each part that opens");
    for _ in 0..all {
        shown.press("Tab")?;
        shown.ask(
            "(window.met.add(document.activeElement), \
             getComputedStyle(document.activeElement).outlineStyle === 'none' && \
             window.bare.push(document.activeElement.outerHTML))",
        )?;
    }
    let missed = "window.all.filter(one => !window.met.has(one)).map(one => one.outerHTML).join()";
    assert_eq!(shown.ask(missed)?, "", "what no key reaches");
    assert_eq!(shown.ask("window.bare.join()")?, "", "what has the focus and does not show it");
    Ok(())
}

#[test]
fn search_filters_rows_while_typing() -> anyhow::Result<()> {
    let plan = saved("quickstart.json")?;
    let Some((shown, _folder)) = opened(&plan, Viewport::DESK)? else { return Ok(()) };
    let rows = "[...document.querySelectorAll('tr[data-text]')].filter(row => !row.hidden).length";
    let all: usize = shown.ask(rows)?.parse()?;
    shown.ask("document.querySelector('input[type=search]').focus()")?;
    shown.write("no such name")?;
    assert_eq!(shown.ask(rows)?, "0");
    for _ in "no such name".chars() {
        shown.press("Backspace")?;
    }
    assert_eq!(shown.ask(rows)?, all.to_string());
    Ok(())
}
