// Drawing once for three places: the screen, a PNG and an SVG file. A view says what it looks like to a `Pen`.

import { download } from "../dom.ts";
import { link as curveBetween, curveBumpX } from "d3-shape";

export interface TextStyle {
  color: string;
  size?: number;
  align?: "left" | "center" | "right";
  turned?: boolean; // upwards, for the names of columns
  bold?: boolean;
}

export interface Pen {
  rect(x: number, y: number, width: number, height: number, color: string, stroke?: string): void;
  text(words: string, x: number, y: number, style: TextStyle): void;
  curve(x1: number, y1: number, x2: number, y2: number, color: string, width: number): void;
  image(canvas: HTMLCanvasElement, x: number, y: number, width: number, height: number): void;
}

export interface Picture {
  width: number;
  height: number;
  paint(pen: Pen): void;
}

export const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Noto Sans CJK SC", sans-serif';

/** A colour of the page, by its name in page.css. */
export function color(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Whether a name can be written downwards, letter under letter: Chinese, Japanese and Korean, and emoji. */
export function isUpright(name: string): boolean {
  return /^[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Extended_Pictographic}]+$/u.test(name);
}

/** The name of a column, which ends at y: downwards where its letters stand upright, otherwise turned. */
export function columnName(pen: Pen, name: string, x: number, y: number, style: TextStyle): void {
  if (!isUpright(name)) return pen.text(name, x, y, { ...style, turned: true });
  const letters = Array.from(name);
  const size = style.size ?? 13;
  letters.forEach((letter, place) => pen.text(letter, x, y - size * (letters.length - place - 0.5), { ...style, align: "center" }));
}

const bump = curveBetween<{ source: [number, number]; target: [number, number] }, [number, number]>(curveBumpX);

class CanvasPen implements Pen {
  constructor(private readonly context: CanvasRenderingContext2D) {}

  rect(x: number, y: number, width: number, height: number, fill: string, stroke?: string): void {
    if (fill !== "none") {
      this.context.fillStyle = fill;
      this.context.fillRect(x, y, width, height);
    }
    if (stroke) {
      this.context.strokeStyle = stroke;
      this.context.lineWidth = 1.5;
      this.context.strokeRect(x, y, width, height);
    }
  }

  text(words: string, x: number, y: number, { color, size = 13, align = "left", turned = false, bold = false }: TextStyle): void {
    const { context } = this;
    context.save();
    context.translate(x, y);
    if (turned) context.rotate(-Math.PI / 2);
    context.font = `${bold ? "600 " : ""}${size}px ${FONT}`;
    context.fillStyle = color;
    context.textAlign = align;
    context.textBaseline = "middle";
    context.fillText(words, 0, 0);
    context.restore();
  }

  curve(x1: number, y1: number, x2: number, y2: number, stroke: string, width: number): void {
    const { context } = this;
    context.beginPath();
    bump.context(context)({ source: [x1, y1], target: [x2, y2] });
    context.strokeStyle = stroke;
    context.lineWidth = width;
    context.stroke();
  }

  image(canvas: HTMLCanvasElement, x: number, y: number, width: number, height: number): void {
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(canvas, x, y, width, height);
  }
}

class SvgPen implements Pen {
  readonly parts: string[] = [];

  rect(x: number, y: number, width: number, height: number, fill: string, stroke?: string): void {
    const line = stroke ? ` stroke="${escaped(stroke)}" stroke-width="1.5"` : "";
    this.parts.push(`<rect x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}" fill="${escaped(fill)}"${line}/>`);
  }

  text(words: string, x: number, y: number, { color, size = 13, align = "left", turned = false, bold = false }: TextStyle): void {
    const anchor = { left: "start", center: "middle", right: "end" }[align];
    const turn = turned ? ` transform="rotate(-90 ${round(x)} ${round(y)})"` : "";
    const weight = bold ? ' font-weight="600"' : "";
    this.parts.push(
      `<text x="${round(x)}" y="${round(y)}" font-size="${size}" fill="${escaped(color)}" text-anchor="${anchor}" dominant-baseline="central"${weight}${turn}>${escaped(words)}</text>`,
    );
  }

  curve(x1: number, y1: number, x2: number, y2: number, stroke: string, width: number): void {
    const path = bump.context(null)({ source: [x1, y1], target: [x2, y2] }) ?? "";
    this.parts.push(`<path d="${path}" fill="none" stroke="${escaped(stroke)}" stroke-width="${round(width)}"/>`);
  }

  image(canvas: HTMLCanvasElement, x: number, y: number, width: number, height: number): void {
    const place = `x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}"`;
    this.parts.push(`<image ${place} preserveAspectRatio="none" image-rendering="pixelated" href="${canvas.toDataURL()}"/>`);
  }
}

function round(value: number): number {
  return Math.round(value * 100) / 100;
}

function escaped(words: string): string {
  return words.replace(/[&<>"]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[sign]!);
}

/** Put a picture on a canvas of the page, as sharp as the screen is. */
export function paintOn(canvas: HTMLCanvasElement, picture: Picture, ratio = Math.min(2, window.devicePixelRatio || 1)): void {
  // Browsers refuse canvases that are much larger than this.
  const scale = Math.min(ratio, 16000 / Math.max(1, picture.height), 16000 / Math.max(1, picture.width));
  canvas.width = Math.max(1, Math.round(picture.width * scale));
  canvas.height = Math.max(1, Math.round(picture.height * scale));
  canvas.style.width = `${picture.width}px`;
  canvas.style.height = `${picture.height}px`;
  const context = canvas.getContext("2d")!;
  context.scale(scale, scale);
  picture.paint(new CanvasPen(context));
}

function svgOf(picture: Picture): string {
  const pen = new SvgPen();
  pen.rect(0, 0, picture.width, picture.height, color("card"));
  picture.paint(pen);
  const size = `width="${round(picture.width)}" height="${round(picture.height)}" viewBox="0 0 ${round(picture.width)} ${round(picture.height)}"`;
  const space = `xmlns="http:${"//"}www.w3.org/2000/svg"`;
  return `<svg ${space} ${size} font-family="${escaped(FONT)}">${pen.parts.join("")}</svg>\n`;
}

export async function savePicture(picture: Picture, name: string, kind: "svg" | "png"): Promise<void> {
  if (kind === "svg") return download(new Blob([svgOf(picture)], { type: "image/svg+xml" }), `${name}.svg`);
  const canvas = document.createElement("canvas");
  const backed: Picture = {
    ...picture,
    paint(pen) {
      pen.rect(0, 0, picture.width, picture.height, color("card"));
      picture.paint(pen);
    },
  };
  paintOn(canvas, backed, 2);
  const blob = await new Promise<Blob | null>((done) => canvas.toBlob(done, "image/png"));
  if (blob) download(blob, `${name}.png`);
}
