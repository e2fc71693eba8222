// Return how many texts the page shows, and those whose contrast by WCAG 2 is below AA: 4.5, or 3 for large text.
// A text of SVG stands on the box in its group.
(() => {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

  function rgba(color) {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = color;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data];
  }

  function luminance(color) {
    const linear = color.map((each) => each / 255).map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  }

  function behind(element) {
    const box = element instanceof SVGElement && [...element.parentNode.children].find((each) => each.matches("rect.node"));
    if (box) return rgba(getComputedStyle(box).fill);
    for (let at = element; at; at = at.parentElement) {
      const found = rgba(getComputedStyle(at).backgroundColor);
      if (found[3] === 255) return found;
    }
    return [255, 255, 255, 255];
  }

  const faint = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const element = text.parentElement, style = getComputedStyle(element), words = text.data.trim();
    if (!words || !element.checkVisibility() || element.closest("title, script, style")) continue;
    seen += 1;
    const color = rgba(element instanceof SVGElement ? style.fill : style.color);
    const [dark, bright] = [color, behind(element)].map(luminance).sort((a, b) => a - b), ratio = (bright + 0.05) / (dark + 0.05);
    const size = parseFloat(style.fontSize), isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (isLarge ? 3 : 4.5)) faint.push(`${ratio.toFixed(2)}: ${words.slice(0, 40)} (${element.outerHTML.slice(0, 60)})`);
  }
  return [seen, faint];
})()
