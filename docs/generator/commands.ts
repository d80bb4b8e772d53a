import { COMMAND_GROUPS, COMMANDS } from '#services/cli/commands.ts'
import { table } from './table.ts'

/** An option of a help text with a description, which may begin on the next line. */
const OPTION = /^ {2}(--?\w.*?)(?: {2,}(\S.*))?$/
const CONTINUATION = /^ {6,}(\S.*)$/

/**
 * A list of the commands, and one section per command: usage, options, and the first paragraph of its help text. An option group that
 * several commands share is printed once; later sections link to it.
 */
export function commandSections(): string {
  const list = Object.entries(COMMAND_GROUPS).flatMap(([group, commands]) =>
    Object.entries(commands).map(([name, { summary }]) => [group, `[\`${name}\`](#${name})`, summary]),
  )
  const printedIn = new Map<string, string>()
  const sections = Object.entries(COMMANDS).map(
    ([name, { help }]) => `### ${name}\n\n${sectionOf(name, help, printedIn)}`,
  )
  return `${table(['Group', 'Command', 'Purpose'], list)}\n\n${sections.join('\n')}`
}

/** Returns the section of one command. Further paragraphs and the examples of its help text are left out, because `--help` prints them. */
function sectionOf(name: string, help: string, printedIn: Map<string, string>): string {
  const [body = ''] = help.split(/^Examples:$/m)
  const [usage = '', description = '', ...blocks] = body.trim().split('\n\n')
  const groups = blocks.filter(hasOptions).map((block) => {
    const first = printedIn.get(block)
    printedIn.set(block, first ?? name)
    const title = block.split('\n')[0]?.replace(/:$/, '')
    return first ? `${title}: as for [\`${first}\`](#${first}).` : blockOf(block)
  })
  const synopsis = usage.replace(/^Usage: /, '').replaceAll(/^ {7}/gm, '')
  return `${['```', synopsis, '```', '', [blockOf(description), ...groups].join('\n\n')].join('\n')}\n`
}

function hasOptions(block: string): boolean {
  return block.split('\n').some((line) => OPTION.test(line))
}

function blockOf(block: string): string {
  const lines = block.split('\n')
  const [head = ''] = lines
  if (!hasOptions(block)) return escaped(block)
  const rows: [option: string, meaning: string][] = []
  const after: string[] = []
  for (const line of head.startsWith(' ') ? lines : lines.slice(1)) {
    const [, option, meaning = ''] = OPTION.exec(line) ?? []
    const [, more] = CONTINUATION.exec(line) ?? []
    const last = rows.at(-1)
    if (option) rows.push([`\`${option}\``, escaped(meaning)])
    else if (more && last) last[1] = `${last[1]} ${escaped(more)}`.trim()
    else after.push(line)
  }
  const title = head.startsWith(' ') || head === 'Options:' ? [] : [head]
  return [...title, table(['Option', 'Meaning'], rows), ...(after.length > 0 ? [escaped(after.join('\n'))] : [])].join(
    '\n\n',
  )
}

/** Converts a help text to Markdown: options become code, indented lines become list items, and `<` is escaped. */
function escaped(text: string): string {
  return text
    .replaceAll('<', '&lt;')
    .replaceAll(/(?<![`\w-])--[a-z][\w-]*/g, '`$&`')
    .replaceAll(/^ {2}(?=\S)/gm, '- ')
}
