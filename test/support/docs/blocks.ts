/** The blocks of code of README.md and docs/, and what is to be done with them. */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

const ROOT = join(import.meta.dirname, '../../..')

/**
 * A block of code. Comments of HTML before its fence say how it is run; readers do not see them:
 *
 * - `<!-- not run: REASON -->`
 * - `<!-- before: CODE -->`, `<!-- after: CODE -->`: code that runs in front of the block, or behind it, which the page takes for
 *   granted. It is in the language of the block, or of the shell around a block that is a file.
 */
export interface Block {
  /** `docs/guides/jobs.md:26`: the line of its fence. */
  readonly place: string
  readonly page: string
  readonly language: string
  /** What follows the language in the fence: a client's name, in docs/get-started/clients.md. */
  readonly name: string
  readonly code: string
  /** The first comment of the code names it, such as `// hook.mjs: npm install express openai`. */
  readonly file: string | undefined
  readonly notRun: string | undefined
  readonly before: readonly string[]
  readonly after: readonly string[]
}

/** README.md and every page of docs/. */
export const PAGES: readonly string[] = [
  'README.md',
  ...readdirSync(join(ROOT, 'docs'), { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.md') && !path.startsWith('adr/'))
    .map((path) => `docs/${path}`)
    .toSorted(),
]

/** A comment before a fence that says something about the block; any other does not. */
const MARK = /^<!-- (\w[\w ]*): (.*) -->$/

/** The blocks of a page, in their order. @throws Error for a mark that means nothing */
export function blocksOf(page: string): Block[] {
  const lines = readFileSync(join(ROOT, page), 'utf8').split('\n')
  const blocks: Block[] = []
  let marks: (readonly [kind: string, text: string])[] = []
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at] ?? ''
    const [, kind, text = ''] = MARK.exec(line) ?? []
    if (kind) marks.push([kind, text])
    else if (line.startsWith('```')) {
      const end = lines.indexOf('```', at + 1)
      blocks.push(blockOf(page, at, lines.slice(at, end), marks))
      at = end
      marks = []
    } else if (marks.length > 0) throw new Error(`${page}:${at}: a mark stands right before a block: ${marks[0]}`)
  }
  return blocks
}

function blockOf(
  page: string,
  at: number,
  [fence = '', ...code]: readonly string[],
  marks: readonly (readonly [kind: string, text: string])[],
): Block {
  const [, language = '', name = ''] = /^```(\w*) ?(.*)$/.exec(fence) ?? []
  const said = (wanted: string) => marks.filter(([kind]) => kind === wanted).map(([, text]) => text)
  const place = `${page}:${at + 1}`
  const unknown = marks.find(([kind]) => !['not run', 'before', 'after'].includes(kind))
  if (unknown) throw new Error(`${place}: there is no mark ${unknown[0]}`)
  const file = /^(?:\/\/|#) ([\w-]+\.(?:mjs|ts|py)): /.exec(code[0] ?? '')?.[1]
  const [notRun] = said('not run')
  const [before, after] = [said('before'), said('after')]
  return { place, page, language, name, code: code.join('\n'), file, notRun, before, after }
}
