import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import type { TextKind } from './rules.ts'

/** A text of the repository that people read. */
export interface Text {
  readonly file: string
  /** Line on which the text begins, from 1. */
  readonly line: number
  readonly kind: TextKind
  readonly text: string
}

const CODE = /^(?:services|shared|schemas|test|bench|examples)\/.*\.tsx?$/
const PAGES = /^(?:README|ARCHITECTURE|CONTRIBUTING|SECURITY)\.md$|^docs\/.*\.md$|^test\/support\/README\.md$/
/** Files whose string literals are messages to people. */
const MESSAGES = /^services\/(?:cli|console)\/|^services\/ingress\/openapi\/|^schemas\/error\.ts$/
/** Files of the rules, which are not checked, because they quote the forbidden words. */
const OWN = /^test\/language\//
const MESSAGE_WORDS_MIN = 3

const BLOCK_OR_LINE = /(?<![\w'`)}\]*])\/\*\*?([\s\S]*?)\*\/|((?:^[ \t]*\/\/.*\n?)+)/gm
const LITERAL = /'((?:[^'\\\n]|\\.)*)'|`((?:[^`\\]|\\.)*)`|>([^<>{}]*[a-z][^<>{}]*)</g
const IDENTIFIER = /\b(?:class|interface|type|const|function\*?|readonly|let)\s+#?([A-Za-z_$][\w$]*)/g

/** All texts of the files that git tracks. */
export function textsOfRepository(): Text[] {
  const files = execFileSync('git', ['ls-files'], { encoding: 'utf8', maxBuffer: 2 ** 26 })
    .trim()
    .split('\n')
  return files.filter((file) => !OWN.test(file) && existsSync(file)).flatMap((file) => textsIn(file))
}

export function textsIn(file: string): Text[] {
  const source = () => readFileSync(file, 'utf8')
  if (PAGES.test(file)) return pageTexts(file, source())
  if (CODE.test(file)) return codeTexts(file, source())
  return []
}

/** Texts of a source file: comments, declared names and, in some files, messages. */
export function codeTexts(file: string, source: string): Text[] {
  const texts: Text[] = []
  const add = (kind: TextKind, at: number, text: string) =>
    texts.push({ file, line: source.slice(0, at).split('\n').length, kind, text })
  for (const match of source.matchAll(BLOCK_OR_LINE)) {
    const body = (match[1] ?? match[2] ?? '').replaceAll(/^[ \t]*(?:\/\/|\*)?[ \t]?/gm, '')
    // Each tag and each paragraph is a text of its own.
    for (const part of body.split(/\n[ \t]*\n|\n(?=@)/))
      add('comment', match.index, joined(part.replace(/^@\w+( \w+)?/, '')))
  }
  const bare = source.replaceAll(BLOCK_OR_LINE, (comment) => comment.replaceAll(/[^\n]/g, ' '))
  for (const match of bare.matchAll(IDENTIFIER)) add('identifier', match.index, match[1] ?? '')
  if (!MESSAGES.test(file)) return texts
  for (const match of bare.matchAll(LITERAL)) {
    const literal = (match[1] ?? match[2] ?? match[3] ?? '').replaceAll(/\$\{[^}]*\}/g, 'X')
    // In the help of a command, each paragraph and each indented line, such as an option or an example, is a text of its own.
    for (const part of literal.split(/\n(?:[ \t]*\n|(?=[ \t]+\S))|:\n/)) {
      const text = joined(part)
      if (text.split(' ').length >= MESSAGE_WORDS_MIN) add('message', match.index, text)
    }
  }
  return texts
}

/** Paragraphs, list items and table cells of a page; code is left out. */
export function pageTexts(file: string, source: string): Text[] {
  const texts: Text[] = []
  let line = 1
  let isCode = false
  let paragraph = ''
  let from = 1
  const flush = () => {
    if (paragraph.trim()) texts.push({ file, line: from, kind: 'page', text: joined(paragraph) })
    paragraph = ''
  }
  for (const row of source.split('\n')) {
    if (/^\s*(?:```|~~~)/.test(row)) {
      flush()
      isCode = !isCode
    } else if (isCode || /^\s*$|^\s*<|^#|^\|[\s|:-]*$/.test(row)) flush()
    else if (row.startsWith('|')) {
      flush()
      for (const cell of row.split('|')) if (cell.trim()) texts.push({ file, line, kind: 'page', text: joined(cell) })
    } else {
      if (/^\s*(?:[-*]|\d+\.)\s/.test(row)) flush()
      if (!paragraph) from = line
      paragraph += ` ${row.replace(/^\s*(?:[-*]|\d+\.)\s+/, '')}`
    }
    line++
  }
  flush()
  return texts
}

function joined(text: string): string {
  return text
    .replaceAll(/\[([^\]]*)\]\([^)]*\)/g, '$1')
    .replaceAll(/\s+/g, ' ')
    .trim()
}
