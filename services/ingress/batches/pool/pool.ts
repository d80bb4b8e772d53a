import type { IngressContext } from '#services/ingress/calls/call.ts'
import { startWorker } from '#shared/jobs/worker/service.ts'
import { batch, batchPart } from '#shared/kinds/batch.ts'
import { handle } from '#shared/kinds/kind.ts'
import type { Ports } from '#shared/ports.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import type { FileStore } from '#shared/store/files.ts'
import { runBatch } from './batch.ts'
import { runPart } from './part.ts'

/**
 * Starts the worker of the pool `batches`. The worker runs in the ingress process, because only the ingress can
 * validate calls (docs/internals/design.md, Composed jobs).
 */
export async function startBatches(ports: Ports, context: IngressContext, files: FileStore): Promise<Service> {
  const tools = { context, files, lineBytesMax: ports.config.bodyBytesMax }
  const kinds = {
    batch: handle(batch, (request, attempt) => runBatch(tools, request, attempt)),
    batch_part: handle(batchPart, (request, attempt) => runPart(tools, request, attempt)),
  }
  return await startWorker(ports, { name: 'batches', slots: ports.config.batchesSlots, kinds })
}
