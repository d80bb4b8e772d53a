import { startWorker } from '#shared/jobs/worker/worker.ts'
import { execute } from '#shared/kinds/execute/execute.ts'
import { handle } from '#shared/kinds/kind.ts'
import type { Ports } from '#shared/ports.ts'
import { prepareInBackground } from '#shared/prepare-progress.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import { runCode, type Workbench } from './run.ts'

/** Starts one worker of the code pool, which runs untrusted Python in the sandbox of this process. */
export async function startCode(ports: Ports): Promise<Service> {
  const { sandbox, config } = ports
  const bench = openWorkbench(ports)
  const kinds = { execute: handle(execute, (request, context) => runCode(bench, request, context)) }
  const definition = { name: 'code', slots: config.codeSlots, kinds } as const
  const preparing = prepareInBackground(ports, 'code')
  const stop = () => preparing.stop()
  return await startWorker(ports, definition, stop, () => sandbox.problems())
}

function openWorkbench({ sandbox, blobs, metrics, log }: Ports): Workbench {
  metrics.gauge('sluice_sandbox_interpreters', { state: 'idle' }, () => sandbox.stats().idle)
  metrics.gauge('sluice_sandbox_interpreters', { state: 'busy' }, () => sandbox.stats().busy)
  return {
    sandbox,
    blobs,
    onRun({ user_id }, { idempotencyKey }, { sandbox, end, seconds }) {
      metrics.sandboxRuns.inc({ sandbox, outcome: end })
      metrics.sandboxSeconds.observe({ sandbox }, seconds)
      const [job_id] = idempotencyKey.split(':')
      log.info({ job_id, sandbox, outcome: end, duration_ms: Math.round(seconds * 1_000), user_id }, 'code run ended')
    },
  }
}
