/** The status of a job or worker as a coloured label. */
export function Status({ status }: { readonly status: string }) {
  return <span class={`status ${status}`}>{status.replace('_', ' ')}</span>
}
