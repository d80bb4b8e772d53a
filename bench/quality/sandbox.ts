import type { SandboxName } from '#shared/sandbox/sandbox.ts'
import { openSandbox } from '../../test/support/sandbox/adapters.ts'
import { snippets } from '../../test/support/sandbox/corpus.ts'
import { runCode } from '../../test/support/sandbox/runs.ts'

/*
 * Runs Python scripts of the kind that models write, all with one sandbox technology. Counts the scripts that end as expected, the plots that arrive,
 * and the plots that arrive more than once.
 *
 *     node bench/quality/sandbox.ts [zygote|wasm|docker]
 */

const name = (process.argv[2] ?? 'zygote') as SandboxName
const sandbox = await openSandbox(name)
if (typeof sandbox === 'string') throw new Error(sandbox)
let [asExpected, figuresDrawn, figuresArrived, figuresTwice] = [0, 0, 0, 0]
const scripts = snippets('figures')
for (const { id, code, timeout_ms: timeoutMs, expect } of scripts) {
  const { plots, exit_code } = await runCode(sandbox, code, { scan: true, timeoutMs })
  const drawn = expect.plots ?? 0
  const isAsExpected = plots.length === drawn && exit_code === expect.exit_code
  if (!isAsExpected) console.log(`${id}: ${plots.length} of ${drawn} figures, exit code ${exit_code}`)
  asExpected += Number(isAsExpected)
  figuresDrawn += drawn
  figuresArrived += Math.min(drawn, plots.length)
  figuresTwice += Math.max(0, plots.length - drawn)
}
await sandbox.close()
console.log(`${name}: ${asExpected} of ${scripts.length} scripts as expected`)
console.log(`figures: ${figuresArrived} of ${figuresDrawn} arrived, ${figuresTwice} too many`)
