//! HTML pages of plans in a real browser, if one is installed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use fleetwright::plan::Plan;
use fleetwright::render;

use crate::browser::{BrowserPage, Viewport, open};
use crate::large::large;

/// Opens the page of a plan. The returned directory contains its file.
fn open_page(
    plan: &Plan,
    viewport: Viewport,
) -> anyhow::Result<Option<(BrowserPage, tempfile::TempDir)>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("plan.html");
    fs::write(&file, render::html(plan))?;
    Ok(open(&format!("file://{}", file.display()), viewport).map(|page| (page, folder)))
}

fn read_plan(name: &str) -> anyhow::Result<Plan> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans").join(name);
    Ok(serde_json::from_str(&fs::read_to_string(path)?)?)
}

/// Longest time to load the large page. It is generous, because CI runs other tests beside it.
const LOADED_MS_MAX: u64 = 5_000;

#[test]
fn browser_opens_page_of_5000_nodes_without_errors() -> anyhow::Result<()> {
    let Some((page, _folder)) = open_page(&large()?, Viewport::DESK)? else { return Ok(()) };
    let rows = page.ask("document.querySelectorAll('tr[data-text]').length")?;
    assert_eq!(rows, (1_000 + 4).to_string(), "one row for each removal and workload");
    // The script ran, so the elements that need it are visible.
    assert_eq!(page.ask("document.querySelectorAll('[data-script][hidden]').length")?, "0");
    let loaded =
        page.ask("Math.round(performance.getEntriesByType('navigation')[0].domComplete)")?;
    let loaded: u64 = loaded.parse()?;
    assert!(loaded < LOADED_MS_MAX, "{loaded} ms; about 500 ms on a quiet computer");
    assert!(page.complaints().is_empty(), "{:#?}", page.complaints());
    Ok(())
}

#[test]
fn page_fits_phone_and_desk_in_light_and_dark() -> anyhow::Result<()> {
    let plan = read_plan("quickstart.json")?;
    let mut backgrounds = BTreeSet::new();
    for viewport in [360, 1_280]
        .into_iter()
        .flat_map(|width| [false, true].map(|dark| Viewport { width, dark }))
    {
        let Some((page, _folder)) = open_page(&plan, viewport)? else { return Ok(()) };
        // Elements wider than the window scroll in their own frame.
        let wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
        assert_eq!(page.ask(wide)?, "0", "{} pixels", viewport.width);
        let cut = "[...document.querySelectorAll('.verdict, .totals, .facts, .pool, .node .meter')]\
                   .filter(one => one.scrollWidth > one.clientWidth).map(one => one.outerHTML).join()";
        assert_eq!(page.ask(cut)?, "", "{} pixels", viewport.width);
        if viewport.width == Viewport::DESK.width {
            // A zone or a capacity type never wraps.
            let wrapped = "[...document.querySelectorAll('.changes td:nth-child(4), .changes td:nth-child(5), .node .kind')]\
                           .filter(one => { const range = document.createRange(); range.selectNodeContents(one); \
                           return range.getClientRects().length > 1; }).map(one => one.outerHTML).join()";
            assert_eq!(page.ask(wrapped)?, "");
        }
        backgrounds.insert(page.ask("getComputedStyle(document.body).backgroundColor")?);
        assert!(page.complaints().is_empty(), "{:#?}", page.complaints());
        // Screenshots are saved on request.
        if let Some(folder) = std::env::var_os("FLEETWRIGHT_PICTURES").map(PathBuf::from) {
            let theme = if viewport.dark { "dark" } else { "light" };
            page.picture(&folder.join(format!("plan-{}-{theme}.png", viewport.width)))?;
        }
    }
    assert_eq!(backgrounds.len(), 2, "light and dark backgrounds differ: {backgrounds:?}");
    Ok(())
}

#[test]
fn page_is_usable_by_keyboard() -> anyhow::Result<()> {
    let plan = read_plan("quickstart.json")?;
    let Some((page, _folder)) = open_page(&plan, Viewport::DESK)? else { return Ok(()) };
    // All visible elements that can have the focus. Closed parts are opened first.
    page.ask(
        "(document.querySelectorAll('details').forEach(part => part.open = true), \
         window.all = [...document.querySelectorAll('a[href], input, button, summary, select, [tabindex=\"0\"]')]\
         .filter(one => one.checkVisibility()), window.met = new Set(), window.bare = [], window.all.length)",
    )?;
    let all: usize = page.ask("window.all.length")?.parse()?;
    assert!(all > 1, "the search, and each collapsible part");
    for _ in 0..all {
        page.press("Tab")?;
        page.ask(
            "(window.met.add(document.activeElement), \
             getComputedStyle(document.activeElement).outlineStyle === 'none' && \
             window.bare.push(document.activeElement.outerHTML))",
        )?;
    }
    let missed = "window.all.filter(one => !window.met.has(one)).map(one => one.outerHTML).join()";
    assert_eq!(page.ask(missed)?, "", "elements that Tab does not reach");
    assert_eq!(page.ask("window.bare.join()")?, "", "elements without a focus indicator");
    Ok(())
}

#[test]
fn search_filters_rows_while_typing() -> anyhow::Result<()> {
    let plan = read_plan("quickstart.json")?;
    let Some((page, _folder)) = open_page(&plan, Viewport::DESK)? else { return Ok(()) };
    let rows = "[...document.querySelectorAll('tr[data-text]')].filter(row => !row.hidden).length";
    let all: usize = page.ask(rows)?.parse()?;
    page.ask("document.querySelector('input[type=search]').focus()")?;
    page.write("no such name")?;
    assert_eq!(page.ask(rows)?, "0");
    for _ in "no such name".chars() {
        page.press("Backspace")?;
    }
    assert_eq!(page.ask(rows)?, all.to_string());
    Ok(())
}

#[test]
fn shown_changes_are_downloaded_as_csv() -> anyhow::Result<()> {
    let plan = read_plan("quickstart.json")?;
    let Some((page, _folder)) = open_page(&plan, Viewport::DESK)? else { return Ok(()) };
    page.ask(
        "(window.made = null, URL.createObjectURL = blob => { window.made = blob; return '#'; })",
    )?;
    page.ask("(document.getElementById('csv').click(), window.made.text().then(text => window.csv = text))")?;
    let lines = "window.csv.trimEnd().split('\\r\\n')";
    let rows = "document.querySelectorAll('.changes tbody tr').length + 1";
    assert_eq!(page.ask(&format!("{lines}.length"))?, page.ask(rows)?);
    let head = page.ask(&format!("{lines}[0]"))?;
    assert!(head.contains("change") && head.contains("reason"), "{head}");
    let first = page.ask(&format!("{lines}[1]"))?;
    assert!(first.contains("ec2_instance") && !first.contains('\n'), "{first}");
    Ok(())
}

#[test]
fn filters_show_the_nodes_of_one_zone() -> anyhow::Result<()> {
    let plan = read_plan("quickstart.json")?;
    let Some((page, _folder)) = open_page(&plan, Viewport::DESK)? else { return Ok(()) };
    let shown =
        "[...document.querySelectorAll('.node')].filter(node => node.checkVisibility()).length";
    assert_eq!(page.ask(shown)?, "4");
    page.ask("(zone.value = 'us-east-1b', zone.dispatchEvent(new Event('change')))")?;
    assert_eq!(page.ask(shown)?, "1");
    // A row of a replacement in another zone is in both zones.
    page.ask(
        "(document.querySelector('.changes tr[data-zone]').dataset.zone = 'us-east-1a us-east-1b')",
    )?;
    let rows = "[...document.querySelectorAll('.changes tr[data-zone]')].filter(row => !row.hidden && \
                row.dataset.zone === 'us-east-1a us-east-1b').length";
    for zone in ["us-east-1a", "us-east-1b"] {
        page.ask(&format!("(zone.value = '{zone}', zone.dispatchEvent(new Event('change')))"))?;
        assert_eq!(page.ask(rows)?, "1", "{zone}");
    }
    page.ask("(zone.value = '', zone.dispatchEvent(new Event('change')))")?;
    assert_eq!(page.ask(shown)?, "4");
    Ok(())
}
