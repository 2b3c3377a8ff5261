"""Opens the page of `nearstep report` in a headless Chromium, on a phone's width and on a wide screen, and
looks at it.
"""

import pathlib
import tempfile
import unittest

import browser
import results
import verdict
from nearstep_report import main

# Everything that is wrong with the page, in words.
FAULTS = """(() => {
  const faults = [], width = document.documentElement.clientWidth;
  const say = (what, node) => faults.push(what + ": " + node.textContent.trim().slice(0, 60));
  const channel = value => { value /= 255; return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4 };
  const light = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number);
    return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  };
  const ground = node => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  if (document.documentElement.scrollWidth > width)
    faults.push("the page is " + document.documentElement.scrollWidth + " wide");
  if (width >= 1200) for (const node of document.querySelectorAll("details[open] > .scroll"))
    if (node.scrollWidth > node.clientWidth) say("clipped columns", node);
  for (const node of document.querySelectorAll("body *")) {
    const box = node.getBoundingClientRect();
    const has_text = [...node.childNodes].some(one => one.nodeType == 3 && one.data.trim());
    if (!box.width || node.closest("title, summary, details:not([open]) > div")) continue;
    if (!node.closest(".scroll > *") && (box.right > width + 0.5 || box.left < -0.5)) say("beyond the edge", node);
    if (!has_text) continue;
    const style = getComputedStyle(node), is_drawn = node.ownerSVGElement;
    const scale = is_drawn ? Math.hypot(node.getScreenCTM().a, node.getScreenCTM().b) : 1;
    if (parseFloat(style.fontSize) * scale < 9) say("small text, " + parseFloat(style.fontSize) * scale + " px", node);
    const pair = [light(is_drawn ? style.fill : style.color), light(ground(node))].sort((one, other) => other - one);
    if ((pair[0] + 0.05) / (pair[1] + 0.05) < 4.5) say("pale text", node);
  }
  for (const drawing of document.querySelectorAll("figure > svg")) {
    const frame = drawing.getBoundingClientRect();
    const boxes = [...drawing.querySelectorAll("text")].map(node => [node, node.getBoundingClientRect()]);
    for (const [node, box] of boxes) {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 ||
          box.bottom > frame.bottom + 1) say("cut text", node);
      for (const [other, its] of boxes) {
        if (other !== node && box.left + 1 < its.right && its.left + 1 < box.right && box.top + 3 < its.bottom &&
            its.top + 3 < box.bottom) say("text upon text", node);
      }
    }
  }
  return faults;
})()"""
COUNTS = (
    "['section', 'figure > svg', 'figcaption', 'table', '.legend li', '.findings li'].map(what => "
    "document.querySelectorAll(what).length)"
)


class OnScreens(unittest.TestCase):
    def setUp(self):
        if browser.find() is None:
            self.skipTest(f"there is no Chromium ({', '.join(browser.NAMES)}); launch/setup installs one")
        folder = tempfile.TemporaryDirectory(prefix="nearstep-report-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        results.write_all(self.folder)
        self.assertEqual(main([str(self.folder)]), 0)
        self.page = self.folder / "report.html"
        self.browser = browser.Browser()
        self.addCleanup(self.browser.close)

    def test_the_page_is_whole_and_readable_on_a_phone_and_on_a_wide_screen(self):
        for width in (400, 1200, 1600):
            self.browser.open(self.page.as_uri(), width)
            self.assertEqual(self.browser.errors(), [])
            self.assertEqual(self.browser.requests(), [self.page.as_uri()])
            sections, drawings, captions, tables, legend, findings = self.browser.ask(COUNTS)
            self.assertEqual((sections, legend), (9, 5))
            self.assertEqual(drawings, captions)
            self.assertGreater(drawings, 10)
            self.assertGreater(findings, 5)
            self.assertEqual(tables, 6)
            self.assertEqual(self.browser.ask(FAULTS), [], width)
            self.look_at(width)

    def test_the_checks_find_what_is_wrong(self):
        for fault, found in (
            ("style='width:500px'>wide", "the page is"),
            ("style='font-size:7px'>tiny", "small text"),
            ("style='color:#bbb'>faint", "pale text"),
        ):
            self.page.write_text(f"<!DOCTYPE html><body style='margin:0'><p {fault}</p>")
            self.browser.open(self.page.as_uri(), 400)
            self.assertIn(found, " ".join(self.browser.ask(FAULTS)))
        self.page.write_text("<!DOCTYPE html><script src='x.js'></script><script>nowhere()</script>")
        self.browser.open(self.page.as_uri(), 400)
        self.assertNotEqual(self.browser.errors(), [])
        self.assertEqual(len(self.browser.requests()), 2)

    def look_at(self, width):
        """The picture has the page's width, ink of many colours, and no empty half."""
        from PIL import Image

        picture = self.folder / f"{width}.png"
        self.browser.picture(picture)
        image = Image.open(picture).convert("RGB")
        self.assertEqual(image.width, width)
        self.assertGreater(image.height, 2000)
        for top in (0, image.height // 2):
            colours = image.crop((0, top, width, top + image.height // 2)).getcolors(1 << 24)
            pixels = sum(count for count, _ in colours)
            dark = sum(count for count, colour in colours if sum(colour) < 400)
            self.assertGreater(len(colours), 200)
            self.assertGreater(dark, pixels // 200)


if __name__ == "__main__":
    verdict.main()
