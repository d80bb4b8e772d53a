/*
 * Tests that comments and documents reference only files, headings and constants that exist.
 *
 * A comment names a document by its path, and a section by its heading after a comma. A source file is named by its path. The file name alone is
 * enough in three cases. The name is unique, the file is in the same folder, or the file is in the folder that the test mirrors. Migrations are
 * left out, because an applied migration must never change.
 */
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { basename, dirname, extname, join, normalize } from 'node:path'
import { describe, expect, test } from 'vitest'
import { Settings } from '#shared/config/settings.ts'

const ROOT = new URL('..', import.meta.url).pathname
const FILES = execFileSync('git', ['ls-files', '-co', '--exclude-standard'], { cwd: ROOT, encoding: 'utf8' })
  .trim()
  .split('\n')
const TREE = new Set(FILES.flatMap((file) => [file, ...foldersOf(file)]))
const DOCUMENTS = FILES.filter((file) => /^(docs\/[\w/-]+|[A-Z]+)\.md$/.test(file))
const CODE = FILES.filter((file) => /\.(ts|js|py|sh|ya?ml)$|Dockerfile$/.test(file) && file !== 'package-lock.json')

/** Names of files that are not in the repository. Such files are created at run time, or belong to models or third-party programs. */
const FOREIGN = new Set([
  ...['keys.json', 'manifest.json', 'config.json', 'index.json', 'package.json', 'tokenizer.json', 'tsconfig.json'],
])

const TEXTS = new Map(
  FILES.filter((file) => isText(file)).map((file) => [file, readFileSync(join(ROOT, file), 'utf8')]),
)
const HEADINGS = new Map(DOCUMENTS.map((file) => [file, headingsOf(textOf(file))]))

describe('references in comments', () => {
  const comments = CODE.flatMap((file) => commentsOf(file).map((text) => ({ file, text })))

  test('name only existing source files', () => {
    const lost = comments.flatMap(({ file, text }) =>
      namesIn(text).flatMap((name) => (isThere(name, file) ? [] : [`${file}: ${name}`])),
    )
    expect(lost).toEqual([])
    expect(comments.length).toBeGreaterThan(1_000)
  })

  test('name only existing headings of documents', () => {
    const cited = comments.flatMap(({ file, text }) => citationsIn(text).map((citation) => ({ file, ...citation })))
    const lost = cited.filter(({ document, rest }) => !HEADINGS.get(document)?.some((heading) => begins(rest, heading)))
    expect(lost).toEqual([])
    expect(cited.length).toBeGreaterThan(100)
  })

  test('cite no section number of a design document outside the repository', () => {
    const byNumber = /\b(contract|spec|design|style)( section)? §?[0-9A-M](\.\d+)?\b|\brules? 0\.\d|\(([A-M]\.\d+)\)/i
    expect(comments.filter(({ text }) => byNumber.test(text))).toEqual([])
  })
})

test('no text contains the conflict markers of a merge', () => {
  const marked = [...TEXTS].filter(([, text]) => /^(<{7}|>{7}) /m.test(text))
  expect(marked.map(([file]) => file)).toEqual([])
})

describe('the documents of the repository', () => {
  test('link only to existing files and headings', () => {
    const lost = DOCUMENTS.flatMap((document) =>
      linksOf(textOf(document)).flatMap(({ path, anchor }) => {
        const target = path === '' ? document : normalize(join(dirname(document), path))
        const isKnown = anchor === undefined || HEADINGS.get(target)?.some((heading) => anchorOf(heading) === anchor)
        return TREE.has(target.replace(/\/$/, '')) && isKnown ? [] : [`${document}: ${path}#${anchor}`]
      }),
    )
    expect(lost).toEqual([])
  })

  test('name only existing files and folders of the repository, including those in tables', () => {
    const lost = DOCUMENTS.flatMap((document) =>
      pathsIn(textOf(document)).flatMap((path) => (isThere(path, document) ? [] : [`${document}: ${path}`])),
    )
    expect(lost).toEqual([])
  })

  test('name, in each row of the code map, only files that exist in the folder of the row', () => {
    const rows = rowsOf('ARCHITECTURE.md', 'Code map').flatMap(([folders = '', holds = '']) =>
      ticked(holds)
        .filter(isPart)
        .map((part) => ({ folders: ticked(folders), part })),
    )
    const lost = rows.filter(({ folders, part }) => !folders.some((folder) => isThere(part, `${folder}x`)))
    expect(lost).toEqual([])
    expect(rows.length).toBeGreaterThan(20)
  })

  test('name only constants that the code declares', () => {
    const rows = rowsOf('docs/internals/design.md', 'Bounds')
    const lost = rows.flatMap(([, , names = '', folders = '']) =>
      ticked(names).flatMap((name) => (isDeclared(name, ticked(folders)) ? [] : [`${name} in ${folders}`])),
    )
    expect(lost).toEqual([])
    expect(rows.length).toBeGreaterThan(10)
  })

  test('include a glossary that defines each term once, in alphabetical order', () => {
    const terms = [...textOf('docs/reference/glossary.md').matchAll(/^- \*\*(.+?)\*\*/gm)].map(([, term]) => term)
    expect(terms).toEqual([...new Set(terms)].toSorted())
    expect(terms.length).toBeGreaterThan(40)
  })
})

test('.env.example lists every setting and nothing else', () => {
  const settings = Object.keys(Settings.shape)
  const example = readFileSync(join(ROOT, '.env.example'), 'utf8')
  const listed = [...example.matchAll(/^#? ?([A-Z][A-Z0-9_]+)=/gm)].map(([, name]) => name)
  expect(listed.toSorted()).toEqual(settings.toSorted())
  expect(settings.length).toBeGreaterThan(40)
})

function isText(file: string): boolean {
  return DOCUMENTS.includes(file) || CODE.includes(file)
}

function textOf(file: string): string {
  return TEXTS.get(file) ?? ''
}

function foldersOf(file: string): string[] {
  const folder = dirname(file)
  return folder === '.' ? [] : [folder, ...foldersOf(folder)]
}

/** Returns each comment of a file as one line of text, without the code after it. */
function commentsOf(file: string): string[] {
  const text = textOf(file)
  const isScript = !['.ts', '.js'].includes(extname(file))
  if (!isScript) {
    const blocks = [...text.matchAll(/(?:^|[\s({,])\/\*[\s\S]*?\*\//g)].map(([block]) => block)
    return [...blocks, ...runsOf(text, /^.*?(?:^|\s)\/\/ (.*)$/)].map(flat)
  }
  const docstrings = extname(file) === '.py' ? [...text.matchAll(/"""[\s\S]*?"""/g)].map(([block]) => block) : []
  return [...docstrings, ...runsOf(text, /^(?:.*\s)?# (.*)$/)].map(flat)
}

/** Returns the comments of a text. Adjacent comment lines are joined to one. */
function runsOf(text: string, comment: RegExp): string[] {
  const runs: string[] = []
  let isOpen = false
  for (const line of text.split('\n')) {
    const said = comment.exec(line)?.[1]
    if (said !== undefined && isOpen) runs.push(`${runs.pop()} ${said}`)
    else if (said !== undefined) runs.push(said)
    isOpen = said !== undefined
  }
  return runs
}

function flat(comment: string): string {
  return comment.replace(/\n\s*\*? ?/g, ' ')
}

/** Returns the file names in a text. URLs and glob patterns are left out. */
function namesIn(text: string): string[] {
  const names = text.matchAll(/(?<![\w./:@$*{-])[\w][\w./-]*\.(?:ts|py|md|ya?ml|sql|json|sh)\b(?![\w/*-])/g)
  return [...names].map(([name]) => name).filter((name) => !FOREIGN.has(name))
}

function citationsIn(text: string): { document: string; rest: string }[] {
  const cited = text.matchAll(/\b((?:docs\/[\w/-]+|[A-Z]+)\.md), (?=[A-Z])(.{1,80})/g)
  return [...cited].map(([, document = '', rest = '']) => ({ document, rest }))
}

/** Whether a text begins with a heading that ends at a word boundary. */
function begins(text: string, heading: string): boolean {
  return text.startsWith(heading) && !/^\w/.test(text.slice(heading.length))
}

/**
 * Whether a file or folder exists. The path may be relative to the root of the repository or to the folder of the referencing file. For a test,
 * it may be relative to the mirrored source folder. A unique file name is enough.
 */
function isThere(path: string, from: string): boolean {
  const name = path.replace(/\/$/, '')
  const folders = ['.', dirname(from), dirname(from).replace(/^test\//, '')]
  if (folders.some((folder) => TREE.has(normalize(join(folder, name))))) return true
  return !name.includes('/') && FILES.filter((file) => basename(file) === name).length === 1
}

function headingsOf(text: string): string[] {
  return [...text.matchAll(/^#{1,4} (.+)$/gm)].map(([, heading = '']) => heading)
}

function anchorOf(heading: string): string {
  return heading
    .toLowerCase()
    .replaceAll(/[^\w\- ]/g, '')
    .replaceAll(' ', '-')
}

function linksOf(text: string): { path: string; anchor: string | undefined }[] {
  const links = text.matchAll(/\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)/g)
  return [...links].map(([, path = '', anchor]) => ({ path, anchor }))
}

/** Returns the words between backticks that begin with the name of a folder of the repository. */
function pathsIn(text: string): string[] {
  const folders = [...new Set(FILES.filter((file) => file.includes('/')).map((file) => file.split('/')[0]))].join('|')
  const isPath = new RegExp(`^(${folders})/[\\w./-]*$`)
  return ticked(text.replace(/```[\s\S]*?```/g, '')).filter((word) => isPath.test(word))
}

/** Whether a word is a file name, or a folder name that ends with a slash. */
function isPart(word: string): boolean {
  return /^[\w./-]+(\.\w{2,4}|\/)$/.test(word)
}

function ticked(text: string): string[] {
  return [...text.matchAll(/`([^`\n]+)`/g)].map(([, word = '']) => word)
}

/** Returns the cells of the table below a heading, without the table header. */
function rowsOf(document: string, heading: string): string[][] {
  const [, section = ''] = textOf(document).split(`## ${heading}\n`)
  const lines = (section.split('\n## ')[0] ?? '').split('\n').filter((line) => line.startsWith('|'))
  return lines.slice(2).map((line) =>
    line
      .split('|')
      .slice(1, -1)
      .map((cell) => cell.trim()),
  )
}

function isDeclared(name: string, folders: readonly string[]): boolean {
  const declaration = new RegExp(`\\bconst ${name}\\b`)
  return CODE.some((file) => folders.some((folder) => file.startsWith(`${folder}/`)) && declaration.test(textOf(file)))
}
