//! Controls a real browser, if one is installed: opens pages, waits, types, and reports errors of
//! the page.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use headless_chrome::protocol::cdp::types::Event;
use headless_chrome::protocol::cdp::{Emulation, Page};
use headless_chrome::{Browser, LaunchOptions, Tab};

use crate::missing_tool::not_run;

/// Paths of the browser on Debian and similar distributions.
const BROWSERS: [&str; 3] =
    ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
/// Timeout of a page for an expected change.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A page in a browser tab.
pub(crate) struct BrowserPage {
    tab: Arc<Tab>,
    complaints: Arc<Mutex<Vec<String>>>,
    viewport: Viewport,
    // Keeps the browser process alive.
    _browser: Browser,
}

/// Window width and color scheme.
#[derive(Clone, Copy)]
pub(crate) struct Viewport {
    /// Width in CSS pixels.
    pub(crate) width: u32,
    pub(crate) dark: bool,
}

impl Viewport {
    /// A desktop window with a light color scheme.
    pub(crate) const DESK: Self = Self { width: 1_280, dark: false };
}

/// Opens a page and waits until it is loaded. Without a browser, returns `None` and prints the
/// reason to stderr.
pub(crate) fn open(url: &str, viewport: Viewport) -> Option<BrowserPage> {
    let Some(path) = BROWSERS.iter().map(PathBuf::from).find(|path| path.exists()) else {
        not_run("browser", &format!("there is none of {}", BROWSERS.join(", ")));
        return None;
    };
    Some(BrowserPage::open(path, url, viewport).unwrap_or_else(|error| panic!("{url}: {error:#}")))
}

impl BrowserPage {
    fn open(path: PathBuf, url: &str, viewport: Viewport) -> anyhow::Result<Self> {
        let options = LaunchOptions::default_builder()
            .path(Some(path))
            // Containers run tests as root.
            .sandbox(false)
            // A page may send no events for a long time while a test waits.
            .idle_browser_timeout(TIMEOUT * 4)
            .build()?;
        let browser = Browser::new(options).context("the browser does not start")?;
        let tab = browser.new_tab()?;
        tab.set_default_timeout(TIMEOUT);
        let complaints = Arc::new(Mutex::new(Vec::new()));
        let messages = Arc::clone(&complaints);
        tab.add_event_listener(Arc::new(move |event: &Event| {
            if let (Some(complaint), Ok(mut messages)) = (complaint(event), messages.lock()) {
                messages.push(complaint);
            }
        }))?;
        tab.enable_log()?.enable_runtime()?;
        let theme = if viewport.dark { "dark" } else { "light" };
        tab.call_method(Emulation::SetEmulatedMedia {
            media: None,
            features: Some(vec![Emulation::MediaFeature {
                name: "prefers-color-scheme".into(),
                value: theme.into(),
            }]),
        })?;
        tab.call_method(window(viewport.width, 900))?;
        tab.navigate_to(url)?.wait_until_navigated()?;
        Ok(Self { tab, complaints, viewport, _browser: browser })
    }

    /// Returns the console messages and script errors of the page.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.complaints.lock().map(|messages| messages.clone()).unwrap_or_default()
    }

    /// Returns the current document.
    #[cfg(feature = "page")]
    pub(crate) fn document(&self) -> anyhow::Result<String> {
        self.tab.get_content()
    }

    /// Waits until the document contains a text.
    #[cfg(feature = "page")]
    pub(crate) fn wait_for(&self, text: &str) -> anyhow::Result<()> {
        let started = std::time::Instant::now();
        loop {
            let document = self.document()?;
            if document.contains(text) {
                return Ok(());
            }
            anyhow::ensure!(started.elapsed() < TIMEOUT, "`{text}` did not appear:\n{document}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Evaluates an expression in the page and returns the result as text.
    pub(crate) fn ask(&self, expression: &str) -> anyhow::Result<String> {
        let answer = self.tab.evaluate(&format!("String({expression})"), true)?;
        let text = answer.value.as_ref().and_then(|value| value.as_str());
        text.map(str::to_owned).with_context(|| format!("{expression}: {answer:?}"))
    }

    /// Presses a key.
    pub(crate) fn press(&self, key: &str) -> anyhow::Result<()> {
        self.tab.press_key(key).map(|_| ()).with_context(|| format!("the key {key}"))
    }

    /// Types into the focused element.
    pub(crate) fn write(&self, text: &str) -> anyhow::Result<()> {
        self.tab.type_str(text).map(|_| ()).with_context(|| format!("typing {text}"))
    }

    /// Saves a screenshot of the whole page as PNG.
    pub(crate) fn picture(&self, file: &Path) -> anyhow::Result<()> {
        let whole = self.tab.call_method(Page::GetLayoutMetrics(None))?.css_content_size;
        let height: u32 = self.ask("document.documentElement.scrollHeight")?.parse()?;
        self.tab.call_method(window(self.viewport.width, height))?;
        let whole =
            Page::Viewport { x: 0.0, y: 0.0, width: whole.width, height: whole.height, scale: 1.0 };
        let png = Page::CaptureScreenshotFormatOption::Png;
        let picture = self.tab.capture_screenshot(png, None, Some(whole), true)?;
        std::fs::write(file, picture).with_context(|| file.display().to_string())
    }
}

/// Returns the call that sets the window size. A real window cannot be narrower than 500 pixels.
fn window(width: u32, height: u32) -> Emulation::SetDeviceMetricsOverride {
    Emulation::SetDeviceMetricsOverride {
        width,
        height,
        device_scale_factor: 1.0,
        mobile: false,
        scale: None,
        screen_width: None,
        screen_height: None,
        position_x: None,
        position_y: None,
        dont_set_visible_size: None,
        screen_orientation: None,
        viewport: None,
        display_feature: None,
        device_posture: None,
    }
}

/// Returns the console message or script error of an event.
fn complaint(event: &Event) -> Option<String> {
    if let Event::LogEntryAdded(added) = event {
        let entry = &added.params.entry;
        return Some(format!("{} {:?}", entry.text, entry.url));
    }
    if let Event::RuntimeExceptionThrown(thrown) = event {
        return Some(format!("{:?}", thrown.params.exception_details));
    }
    if let Event::RuntimeConsoleAPICalled(called) = event {
        return Some(format!("{:?}", called.params.args));
    }
    None
}
