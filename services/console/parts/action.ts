import { type Signal, useSignal } from '@preact/signals'
import { messageOf } from '#services/console/api/client.ts'

export interface Action {
  readonly isBusy: Signal<boolean>
  /** Error text of the last run, or an empty string. */
  readonly problem: Signal<string>
  run(work: () => Promise<void>): Promise<boolean>
}

export function useAction(): Action {
  const isBusy = useSignal(false)
  const problem = useSignal('')
  const run = async (work: () => Promise<void>) => {
    isBusy.value = true
    problem.value = ''
    await work().catch((error: unknown) => {
      problem.value = messageOf(error)
    })
    isBusy.value = false
    return problem.value === ''
  }
  return { isBusy, problem, run }
}
