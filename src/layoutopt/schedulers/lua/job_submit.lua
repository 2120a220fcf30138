-- Installed as job_submit.lua beside slurm.conf (JobSubmitPlugins=lua). Made by layoutopt.
-- Runs inside slurmctld with its locks held: integers only, no child process, no file, no network.
-- A job without LAYOUT_TP is none of its business; whatever it cannot read it lets pass.

local function number(env, name, default)
   local ok, value = pcall(function() return env[name] end)
   if not ok or value == nil or value == "" then return default end
   local found = tonumber(value)
   if found == nil or found < 1 or found ~= math.floor(found) then return nil, tostring(value) end
   return found
end

local function gpus_per_node(job_desc)
   local text = tostring(job_desc.tres_per_node or "")
   return tonumber(text:match("gpu[%w_:%-]*:(%d+)") or text:match("gpu=(%d+)"))
end

local function complaint(job_desc)
   local env, degrees = job_desc.environment, {}
   for _, axis in ipairs{ "TP", "CP", "PP", "DP", "EP", "MICRO_BATCH", "MICROBATCHES", "GLOBAL_BATCH" } do
      local value, wrong = number(env, "LAYOUT_" .. axis, false)
      if wrong then return string.format("LAYOUT_%s is %s, not a whole number above 0", axis, wrong) end
      degrees[axis] = value
   end
   local tp, cp, pp = degrees.TP, degrees.CP or 1, degrees.PP or 1
   if not tp then return nil end
   local per, nodes = gpus_per_node(job_desc), tonumber(job_desc.min_nodes)
   -- slurm.NO_VAL where a client gave no number of nodes
   if nodes and (nodes < 1 or nodes >= 4294967294) then nodes = nil end
   local domain = number(env, "LAYOUT_DOMAIN_GPUS", per)
   if domain and tp > domain then
      return string.format("tp %d spans nodes: %d GPUs are joined by NVLink", tp, domain)
   end
   if degrees.GLOBAL_BATCH and degrees.DP and degrees.MICRO_BATCH and degrees.MICROBATCHES then
      local product = degrees.DP * degrees.MICRO_BATCH * degrees.MICROBATCHES
      if product ~= degrees.GLOBAL_BATCH then
         return string.format("dp %d x micro_batch %d x microbatches %d = %d sequences, not the global batch of %d",
            degrees.DP, degrees.MICRO_BATCH, degrees.MICROBATCHES, product, degrees.GLOBAL_BATCH)
      end
   end
   if not per or not nodes then return nil end
   local world, unit = nodes * per, tp * cp * pp
   if world % unit ~= 0 then
      return string.format("%d GPUs are not a multiple of tp %d x cp %d x pp %d = %d", world, tp, cp, pp, unit)
   end
   if degrees.DP and degrees.DP * unit ~= world then
      return string.format("tp %d x cp %d x pp %d x dp %d = %d GPUs, but the job has %d", tp, cp, pp,
         degrees.DP, degrees.DP * unit, world)
   end
   return nil
end

function slurm_job_submit(job_desc, part_list, submit_uid)
   if job_desc.environment == nil then return slurm.SUCCESS end
   local ok, why = pcall(complaint, job_desc)
   if not ok then
      slurm.log_info("layoutopt: not checked: %s", tostring(why))
      return slurm.SUCCESS
   end
   if why then
      slurm.log_user("layoutopt: %s", why)
      return slurm.ERROR
   end
   return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid) return slurm.SUCCESS end

return slurm.SUCCESS
