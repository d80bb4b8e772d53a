const WIDTH = 80

/**
 * Wraps a help text to 80 columns without changing its words.
 *
 * Paragraphs are filled. An option's description continues in its own column. Usage lines and examples continue indented;
 * a broken example ends in a backslash, so that it can still be pasted into a shell.
 */
export function formatHelp(help: string): string {
  return blocksOf(help).map(fill).join('\n')
}

/** Joins the lines of each paragraph, option or example. */
function blocksOf(help: string): string[] {
  const blocks: string[] = []
  let canContinue = false
  for (const line of help.split('\n')) {
    const last = blocks.at(-1) ?? ''
    const indent = indentOf(line)
    const isPart = indent === 0 ? !last.startsWith(' ') : indent > 3 && (isUsage(last) || indent === hangOf(last))
    if (canContinue && line !== '' && isPart && !isUsage(line)) blocks[blocks.length - 1] = `${last} ${line.trim()}`
    else blocks.push(line)
    // A heading is a block of its own.
    canContinue = line !== '' && !/^\w.*:$/.test(line)
  }
  return blocks
}

function fill(block: string): string {
  if (block.length <= WIDTH) return block
  const isShell = isExample(block)
  const continuation = isShell ? ' \\' : ''
  const hang = ' '.repeat(isUsage(block) || isShell ? indentOf(block) + (isShell ? 4 : 9) : hangOf(block))
  const lines: string[] = []
  let line = ' '.repeat(indentOf(block))
  for (const word of isShell ? shellWords(block) : usageWords(block)) {
    const isFirst = line.trim() === ''
    if (!isFirst && line.length + word.length + 1 + continuation.length > WIDTH) {
      lines.push(line + continuation)
      line = hang + word
    } else line += isFirst ? word : word.replace(/^(?! )/, ' ')
  }
  return [...lines, line].join('\n')
}

/** Indentation of the second and later lines: the column of an option's description, which follows two spaces. */
function hangOf(block: string): number {
  const indent = indentOf(block)
  // The description is on the line below its option.
  if (indent === 0 || indent > 6) return indent
  const [lead] = /^ +\S+(?: \S+)*? {2,}(?=\S)/.exec(block) ?? []
  return lead?.length ?? indent + 2
}

/** Words, each with the extra spaces that precede it in a table. */
function usageWords(block: string): string[] {
  return (
    block
      .trim()
      .match(/(?:^| +)(?:\[[^\]]*\]|[^\s[]+|\[)+/g)
      ?.map((word) => word.replace(/^ (?! )/, '')) ?? []
  )
}

/** Words of a shell command; an option stays with its value. */
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
