import { resolve } from 'node:path'
import { runCommand } from '../machine/processes.ts'
import type { Section } from '../section.ts'

/** Scripts of this section, which can also be run alone. With `--quick`, only the first script runs. */
const SCRIPTS = ['sandbox.ts', 'speech.ts', 'turns.ts', 'research.ts'] as const

export const QUALITY: Section = {
  name: 'quality',
  summary: 'answers of the sandbox, of speech models and of research on public test sets',
  title: '## Quality',
  introduction: `Results on test sets that are fetched from packages: scripts with figures in the sandbox, recordings in several languages, second turns of chats, and
research questions over the documentation of 50 packages. Each script of \`bench/quality/\` also runs alone.`,
  async measure(run) {
    const parts: string[] = []
    for (const script of run.options.isQuick ? SCRIPTS.slice(0, 1) : SCRIPTS) {
      run.signal.throwIfAborted()
      run.print(`running bench/quality/${script}`)
      const path = resolve(import.meta.dirname, script)
      const printed = await runCommand(process.execPath, [path]).catch((error: Error) => error.message)
      parts.push(`### \`bench/quality/${script}\``, `\`\`\`text\n${printed}\n\`\`\``)
    }
    return parts
  },
}
