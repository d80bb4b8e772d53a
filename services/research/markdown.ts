import { lineOf } from '#shared/search/text/builder.ts'

/*
 * Text of sources and models as Markdown shows it: nothing in it becomes markup, a link, a picture, HTML or a citation marker.
 */

/** Escapes what Markdown would read as its own, on one line; what people see is the text itself, with a bar between cells of a row. */
export function escapeMarkdown(text: string): string {
  return lineOf(text.replaceAll('\t', ' | '))
    .replace(/[\\`*[\]<>~|&$]/g, '\\$&')
    .replace(/(?<![\p{L}\p{N}])_|_(?![\p{L}\p{N}])/gu, '\\_')
    .replace(/:\/\//g, '\\://')
    .replace(/\b(www|mailto|ftp)([.:])/gi, '$1\\$2')
    .replace(/@/g, '\\@')
    .replace(/^(\s*)([#+=-])/, '$1\\$2')
    .replace(/^(\s*\d{1,9})([.)])/, '$1\\$2')
}

/** A link to a source. What could end its address is written in percents. */
export function linkTo(title: string, url: string): string {
  const address = url.replace(/[<>\s\\]/g, (found) => encodeURIComponent(found))
  return `[${escapeMarkdown(title)}](<${address}>)`
}
