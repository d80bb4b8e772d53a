/** Columns of a terminal that nobody has made wider. */
const WIDTH = 80

/**
 * Lays out a help text for terminals of 80 columns, as it was written but for where lines end: paragraphs are filled, what an option
 * does goes on below itself, usages and examples go on indented, examples so that they can still be pasted into a shell.
 */
export function layOut(help: string): string {
  return blocksOf(help).map(fill).join('\n')
}

/** Lines that belong together: a paragraph, an option with what it does, an example. */
function blocksOf(help: string): string[] {
  const blocks: string[] = []
  let canGoOn = false
  for (const line of help.split('\n')) {
    const last = blocks.at(-1) ?? ''
    const indent = indentOf(line)
    const isPart = indent === 0 ? !last.startsWith(' ') : indent > 3 && (isUsage(last) || indent === hangOf(last))
    if (canGoOn && line !== '' && isPart && !isUsage(line)) blocks[blocks.length - 1] = `${last} ${line.trim()}`
    else blocks.push(line)
    // A heading stands alone.
    canGoOn = line !== '' && !/^\w.*:$/.test(line)
  }
  return blocks
}

function fill(block: string): string {
  if (block.length <= WIDTH) return block
  const isShell = isExample(block)
  const goesOn = isShell ? ' \\' : ''
  const hang = ' '.repeat(isUsage(block) || isShell ? indentOf(block) + (isShell ? 4 : 9) : hangOf(block))
  const lines: string[] = []
  let line = ' '.repeat(indentOf(block))
  for (const word of isShell ? shellWords(block) : usageWords(block)) {
    const isFirst = line.trim() === ''
    if (!isFirst && line.length + word.length + 1 + goesOn.length > WIDTH) {
      lines.push(line + goesOn)
      line = hang + word
    } else line += isFirst ? word : word.replace(/^(?! )/, ' ')
  }
  return [...lines, line].join('\n')
}

/** The column at which a block goes on: that of what an option does, which two blanks set off. */
function hangOf(block: string): number {
  const indent = indentOf(block)
  // What an option does, below an option that leaves no room for it.
  if (indent === 0 || indent > 6) return indent
  const [lead] = /^ +\S+(?: \S+)*? {2,}(?=\S)/.exec(block) ?? []
  return lead?.length ?? indent + 2
}

/** Words, with the blanks that set off the columns of a table before them. */
function usageWords(block: string): string[] {
  return (
    block
      .trim()
      .match(/(?:^| +)(?:\[[^\]]*\]|[^\s[]+|\[)+/g)
      ?.map((word) => word.replace(/^ (?! )/, '')) ?? []
  )
}

/** Words as a shell has them, and an option with its value. */
function shellWords(block: string): string[] {
  return block.trim().match(/(?:\| )?(?:--?[a-z-]+ (?!-))?(?:'[^']*'|[^\s'])+/g) ?? []
}

function isUsage(line: string): boolean {
  return /^(Usage: | {7}sluice )/.test(line)
}

function isExample(line: string): boolean {
  return /^ {2}([A-Z_]+=\S+ )*sluice /.test(line)
}

function indentOf(line: string): number {
  return line.length - line.trimStart().length
}
