"""The contrast of all type on an open page, as WCAG 2 has it."""
from __future__ import annotations

# Colours that only stand on coloured areas, where the area and not the page is behind them: the figures' own tests.
ON_AREAS = ("rgb(1, 1, 1)", "rgb(254, 254, 254)")

SCRIPT = """
onAreas => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const parse = colour => {  // any CSS colour as [r, g, b, alpha]
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, low) => [0, 1, 2].map(k => top[3] * top[k] + (1 - top[3]) * low[k]);
  const luminance = rgb => rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const ground = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((low, top) => over(top, low), [255, 255, 255]);
  };
  const found = [];
  const measure = (element, style, words) => {
    const svg = element.closest("svg") && element.tagName !== "svg";
    const colour = svg ? style.fill : style.color;
    if (svg && onAreas.includes(colour)) return;
    const behind = ground(svg ? element.closest("svg").parentElement : element);
    const tone = parse(colour);
    tone[3] *= svg ? Number(style.fillOpacity) * Number(style.opacity) : Number(style.opacity);
    const [high, low] = [luminance(behind), luminance(over(tone, behind))].sort((a, b) => b - a);
    const pixels = parseFloat(style.fontSize), large = pixels >= 24 || (pixels >= 18.66 && style.fontWeight >= 700);
    found.push({ words, ratio: (high + 0.05) / (low + 0.05), enough: large && svg ? 3 : 4.5, kind: svg ? "svg"
      : element.tagName.toLowerCase() + (element.className ? "." + element.className : "") });
  };
  for (const element of document.querySelectorAll("body *")) {
    if (["SCRIPT", "OPTION"].includes(element.tagName) || !element.checkVisibility()) continue;
    const words = [...element.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join(" ").trim();
    if (words || ["INPUT", "SELECT"].includes(element.tagName)) measure(element, getComputedStyle(element), words);
    for (const pseudo of ["::after", "::before", "::placeholder"]) {
      const style = getComputedStyle(element, pseudo);
      const named = pseudo === "::placeholder" ? element.placeholder : !["none", "normal"].includes(style.content);
      if (named) measure(element, style, pseudo);
    }
  }
  return found;
}
"""


def contrasts(page) -> list[dict]:
    """Each piece of visible type with its contrast `ratio`, what is `enough`, and the `kind` of its element."""
    return page.evaluate(SCRIPT, list(ON_AREAS))
