import { lineOf } from '#shared/search/text/builder.ts'

/*
 * Escaping of untrusted text (sources, models) for Markdown. No such text becomes markup, a link, an image, HTML or a citation marker.
 */

/** Joins a text to one line and escapes Markdown syntax. Tabs between cells of a row become ` | `. */
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

/** A Markdown link to a source. Characters that could end the address are percent-encoded. */
export function linkTo(title: string, url: string): string {
  const address = url.replace(/[<>\s\\]/g, (found) => encodeURIComponent(found))
  return `[${escapeMarkdown(title)}](<${address}>)`
}
